"""State that this process has only once, whichever cluster it is the chief of.

Everything else belongs to a connection (`connection.Connection.part`), to a
strategy, or to a coordinator. This state cannot, because it exists once for
each process:

- TensorFlow has one eager context for each process. So there is one session at
  a time, one change of the membership at a time, and one server for the chief,
  which TensorFlow cannot stop.
- Programs without a cluster share the one that is started for them.

Pure: no TensorFlow. Code that stops a cluster can close its session first
without loading TensorFlow.
"""

import threading
from typing import Any

from tfps_plugin.cluster.calls.bounded_calls import SerialCalls
from tfps_plugin.cluster.spec import ClusterSpec


class ThisProcess:
    """The state of one process.

    Attributes:
        changes: Makes every change of TensorFlow's view of the cluster: two at
            once crash the process.
        connecting: Held while a session begins.
        session: The open session; None: there is none.
        own_port: Port of this process's own server, kept for the next cluster;
            None: none has been started.
        embedding: Held while the embedded cluster starts.
        embedded_cluster: The `LocalCluster` of programs that are given no
            cluster; None: none has been started.

    Guarded by `connecting`: `session` when it is set, `own_port`.
    Guarded by `embedding`: `embedded_cluster`.
    """

    def __init__(self) -> None:
        """Describes a process that has never been a chief."""
        self.changes = SerialCalls()
        self.connecting = threading.Lock()
        # A `session.Session`, which needs TensorFlow.
        self.session: Any = None
        self.own_port: int | None = None
        self.embedding = threading.Lock()
        self.embedded_cluster: Any = None


state = ThisProcess()


def close_session(cluster: ClusterSpec) -> None:
    """Closes the session of a cluster, if it is the open one.

    Args:
        cluster: The cluster as the program described it to the session.

    Threading: any thread.
    """
    session = state.session
    if session is not None and session.requested == cluster:
        session.close()

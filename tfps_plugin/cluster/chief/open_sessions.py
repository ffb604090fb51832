"""Which clusters this process is connected to as the chief.

It stands apart from session.py so that whoever stops a cluster can end the
connection to it first, without loading TensorFlow to learn that there is none.

Guarantees: a session's `close` is called at most once from here.
Guarded by `_lock`: `_closers`.
Never call while holding the lock: the sessions' `close`.
"""

import threading
from collections.abc import Callable

from tfps_plugin.cluster.spec import ClusterSpec

_lock = threading.Lock()
_closers: dict[ClusterSpec, Callable[[], None]] = {}


def add(cluster: ClusterSpec, close: Callable[[], None]) -> None:
    """Notes that there is a session, and how to close it."""
    with _lock:
        _closers[cluster] = close


def remove(cluster: ClusterSpec) -> None:
    """Notes that there is none any more."""
    with _lock:
        _closers.pop(cluster, None)


def close(cluster: ClusterSpec) -> None:
    """Closes the session of this cluster, if there is one."""
    with _lock:
        closer = _closers.pop(cluster, None)
    if closer is not None:
        closer()

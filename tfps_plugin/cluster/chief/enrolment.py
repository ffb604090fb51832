"""Workers that belong to a cluster, whose number may change."""

import dataclasses
import threading

from tfps_plugin import errors
from tfps_plugin.cluster.chief import server_def
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task


class Enrolment:
    """Keeps account of the workers that were added and removed.

    A worker has one index for as long as the chief is connected. Nobody else
    gets the index of a worker that was removed; the worker itself has it again
    when its address is added again.

    Threading: safe from several threads. Guarded by `_lock`: everything.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        """Begins with the workers of a cluster."""
        self._lock = threading.Lock()
        self._cluster = cluster
        self._removed: frozenset[int] = frozenset()
        self._most = server_def.most_tasks(len(cluster.worker_addresses))

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster, with the workers that were removed."""
        with self._lock:
            return self._cluster

    @property
    def workers(self) -> tuple[Task, ...]:
        """The workers that belong to the cluster, by index."""
        with self._lock:
            return tuple(
                task
                for task in self._cluster.workers
                if task.index not in self._removed
            )

    def is_removed(self, task: Task) -> bool:
        """Returns whether a task is a worker that was removed."""
        with self._lock:
            return task.index in self._removed and (
                task in self._cluster.workers
            )

    def add(self, address: str) -> Task:
        """Adds a worker.

        Args:
            address: Its address, `"host:port"`.

        Returns:
            The worker. If its address belongs to the cluster already, nothing
            is changed.

        Raises:
            ClusterConfigurationError: If it is no address, if a parameter
                server or the chief has it, or if there are too many workers.
        """
        with self._lock:
            for task in self._cluster.workers:
                if task.address == address:
                    self._removed -= {task.index}
                    return task
            addresses = (*self._cluster.worker_addresses, address)
            if len(addresses) > self._most:
                raise errors.ClusterConfigurationError(
                    "The cluster can take no further worker: TensorFlow is "
                    "told at the start how many there may be. Expected at most "
                    f"{self._most}, with those that were removed. Received: "
                    f"address={address!r} for worker {len(addresses) - 1}. "
                    "Start the chief again with the workers that there are: it "
                    "goes on from the last checkpoint."
                )
            # Checks the address.
            self._cluster = dataclasses.replace(
                self._cluster, worker_addresses=addresses
            )
            return self._cluster.workers[-1]

    def remove(self, task: Task) -> None:
        """Removes a worker; does nothing if that was done before."""
        with self._lock:
            self._removed |= {task.index}

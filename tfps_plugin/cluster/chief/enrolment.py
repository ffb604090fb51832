"""Tasks that belong to a cluster, whose number may change."""

import dataclasses
import threading
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.chief import server_def
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_FIELDS = {WORKER: "worker_addresses", PARAMETER_SERVER: "ps_addresses"}
_NAMES = {WORKER: "worker", PARAMETER_SERVER: "parameter server"}


class Enrolment:
    """Keeps account of the workers and ps that were added and removed.

    A task has one index for as long as the chief is connected. No other task
    gets the index of one that was removed; the task itself has it again when
    its address is added again.

    Threading: safe from several threads. Guarded by `_lock`: everything.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        """Begins with the tasks of a cluster."""
        self._lock = threading.Lock()
        self._cluster = cluster
        self._removed: frozenset[tuple[str, int]] = frozenset()
        # Added, but not yet of the cluster.
        self._joining: frozenset[tuple[str, int]] = frozenset()
        self._most = {
            job: server_def.most_tasks(len(getattr(cluster, field)))
            for job, field in _FIELDS.items()
        }

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster, with the tasks that were removed."""
        with self._lock:
            return self._cluster

    @property
    def workers(self) -> tuple[Task, ...]:
        """The workers that belong to the cluster, by index."""
        with self._lock:
            return self._members(self._cluster.workers)

    @property
    def parameter_servers(self) -> tuple[Task, ...]:
        """The parameter servers that belong to the cluster, by index."""
        with self._lock:
            return self._members(self._cluster.parameter_servers)

    def is_removed(self, task: Task) -> bool:
        """Returns whether a task was removed."""
        with self._lock:
            return (task.job, task.index) in self._removed and (
                task in self._cluster.serving_tasks
            )

    def add(
        self, address: str, job: str = WORKER, *, joins: bool = False
    ) -> Task:
        """Adds a worker or a parameter server.

        Args:
            address: Its address, `"host:port"`.
            job: Its job.
            joins: Whether it only belongs to the cluster once `join` is called.

        Returns:
            The task. If its address belongs to the job already, nothing is
            changed.

        Raises:
            ClusterConfigurationError: If it is no address, if a task of another
                job has it, or if there are too many tasks.
        """
        with self._lock:
            for task in self._tasks_of(job):
                if task.address == address:
                    if joins and (job, task.index) in self._removed:
                        self._joining |= {(job, task.index)}
                    self._removed -= {(job, task.index)}
                    return task
            addresses = (*getattr(self._cluster, _FIELDS[job]), address)
            if len(addresses) > self._most[job]:
                raise errors.ClusterConfigurationError(
                    f"The cluster can take no further {_NAMES[job]}: "
                    "TensorFlow is told at the start how many there may be. "
                    f"Expected at most {self._most[job]}, with those that were "
                    f"removed. Received: address={address!r} for {_NAMES[job]} "
                    f"{len(addresses) - 1}. Start the chief again with the "
                    "tasks that there are: it goes on from the last checkpoint."
                )
            # Checks the address.
            changed: dict[str, Any] = {_FIELDS[job]: addresses}
            self._cluster = dataclasses.replace(self._cluster, **changed)
            task = self._tasks_of(job)[-1]
            if joins:
                self._joining |= {(job, task.index)}
            return task

    def join(self, task: Task) -> None:
        """Makes a task that joins belong to the cluster."""
        with self._lock:
            self._joining -= {(task.job, task.index)}

    def remove(self, task: Task) -> None:
        """Removes a task; does nothing if that was done before."""
        with self._lock:
            self._removed |= {(task.job, task.index)}
            self._joining -= {(task.job, task.index)}

    def _tasks_of(self, job: str) -> tuple[Task, ...]:
        return tuple(t for t in self._cluster.serving_tasks if t.job == job)

    def _members(self, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        absent = self._removed | self._joining
        return tuple(t for t in tasks if (t.job, t.index) not in absent)

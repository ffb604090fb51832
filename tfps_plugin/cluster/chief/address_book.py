"""Current addresses of the tasks of a cluster, which may move."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable

from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")


class AddressBook:
    """Current address of each worker and ps.

    All other code knows tasks by their first address.

    Guarantees: every method may be called from any thread.
    Guarded by `_lock`: the addresses, the latest lookup, the latest problem.
    Never call while holding it: `look_up`.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        look_up: Callable[[], ClusterSpec] | None = None,
        *,
        interval_seconds: float = 1.0,
    ) -> None:
        """Starts with the addresses of the cluster.

        Args:
            cluster: The tasks.
            look_up: Returns the current addresses; may take seconds, or raise.
                None: no task ever moves.
            interval_seconds: Shortest time between two lookups.
        """
        self._cluster = cluster
        self._look_up = look_up
        self._lock = threading.Lock()
        self._now: dict[Task, Task] = {}
        self._problem = ""
        self._interval_seconds = interval_seconds
        self._found: ClusterSpec | None = None
        self._next_look_up = 0.0

    def now(self, task: Task) -> Task:
        """Returns a task with its current address.

        Args:
            task: The task as in the cluster.
        """
        with self._lock:
            return self._now.get(task, task)

    def look_again(self, task: Task) -> Task:
        """Looks up a task that does not answer; returns the same as `now`."""
        if self._look_up is None:
            return task
        before = self.now(task)
        try:
            found = self._ask(self._look_up).task(task.job, task.index)
        except Exception as error:
            self._note_problem(task, f"{type(error).__name__}: {error}")
            return before
        if found != before:
            _logger.info(
                "%s is to be found at %s, no longer at %s.",
                task,
                found.address,
                before.address,
            )
            with self._lock:
                self._now[task] = found
        return found

    def look_up_all(self) -> ClusterSpec | None:
        """Returns the cluster as the lookup describes it now, if it does.

        Returns:
            The cluster; None without a lookup, or if that raises, which is
            logged.
        """
        if self._look_up is None:
            return None
        try:
            return self._ask(self._look_up)
        except Exception as error:
            self._note_problem(None, f"{type(error).__name__}: {error}")
            return None

    def spec(self, cluster: ClusterSpec | None = None) -> ClusterSpec:
        """Returns the cluster with the current addresses.

        Args:
            cluster: Another one, some of whose tasks have moved; None: that of
                the beginning.
        """
        cluster = cluster or self._cluster
        addresses = {
            job: tuple(
                self.now(task).address
                for task in cluster.serving_tasks
                if task.job == job
            )
            for job in (WORKER, PARAMETER_SERVER)
        }
        return dataclasses.replace(
            cluster,
            worker_addresses=addresses[WORKER],
            ps_addresses=addresses[PARAMETER_SERVER],
        )

    def _ask(self, look_up: Callable[[], ClusterSpec]) -> ClusterSpec:
        with self._lock:
            if self._found is not None and (
                time.monotonic() < self._next_look_up
            ):
                return self._found
        found = look_up()
        with self._lock:
            self._found = found
            self._next_look_up = time.monotonic() + self._interval_seconds
        return found

    def _note_problem(self, task: Task | None, problem: str) -> None:
        with self._lock:
            is_news, self._problem = problem != self._problem, problem
        if not is_news:
            return
        if task is None:
            _logger.warning(
                "The cluster resolver does not say which tasks there are; "
                "nothing is changed until it does. Received: %s",
                problem,
            )
            return
        _logger.warning(
            "The cluster resolver does not say where %s is; it is looked "
            "for at its last address. Received: %s",
            task,
            problem,
        )

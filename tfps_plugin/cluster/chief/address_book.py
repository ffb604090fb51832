"""Current addresses of the tasks of a cluster, which may move."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

_PROBE_TIMEOUT_SECONDS = 2.0


def are_in_place(addresses: Sequence[str], indices: Mapping[str, int]) -> bool:
    """Returns whether a list has tasks in the order of their indices.

    Some lists have another order, such as that of names of pods as text, in
    which `worker-10` comes before `worker-2`. There a place tells nothing.

    Args:
        addresses: Addresses of the tasks of a job, as they are described.
        indices: Address to index, of tasks whose index is known. Those that
            the list lacks do not matter.
    """
    return all(
        indices.get(address, place) == place
        for place, address in enumerate(addresses)
    )


class AddressBook:
    """Current address of each worker and ps.

    All other code knows tasks by their first address.

    Guarantees: every method may be called from any thread.
    Guarded by `_lock`: the addresses, the latest lookup, the latest problem.
    Never call while holding it: `look_up`, `ask`.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        look_up: Callable[[], ClusterSpec] | None = None,
        *,
        members: Callable[[], Iterable[Task]] | None = None,
        ask: Callable[[Iterable[str], float], Mapping[str, str]] | None = None,
        interval_seconds: float = 1.0,
    ) -> None:
        """Starts with the addresses of the cluster.

        Args:
            cluster: The tasks.
            look_up: Returns the current addresses; may take seconds, or raise.
                None: no task ever moves.
            members: Returns the tasks that belong to the cluster now; None:
                those of the beginning.
            ask: Asks processes which tasks they are; see `health.names_at`.
                None: nobody is asked.
            interval_seconds: Shortest time between two lookups.
        """
        self._cluster = cluster
        self._look_up = look_up
        self._members = members or (lambda: cluster.serving_tasks)
        self._names_at = ask or (lambda addresses, timeout_seconds: {})
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

    def look_again(
        self, task: Task, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS
    ) -> Task:
        """Looks up a task that does not answer; returns the same as `now`.

        A task is at its place in the list. If the list has another order, it is
        where it was as long as the list has that address, and then where a
        process says that it is this task.

        Args:
            task: The task as in the cluster.
            timeout_seconds: How long to wait for such processes.
        """
        if self._look_up is None:
            return task
        before = self.now(task)
        try:
            described = self._ask(self._look_up)
            found = self._find(described, before, timeout_seconds)
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

    def _find(
        self, described: ClusterSpec, before: Task, timeout_seconds: float
    ) -> Task:
        """Returns a task with the address that a description has for it."""
        addresses = described.addresses(before.job)
        if before.address in addresses:
            return before
        others = {
            self.now(other).address: other.index
            for other in self._members()
            if other.job == before.job and other.index != before.index
        }
        if are_in_place(addresses, others):
            return described.task(before.job, before.index)
        free = [address for address in addresses if address not in others]
        for address, name in self._names_at(free, timeout_seconds).items():
            if name == before.name:
                return dataclasses.replace(before, address=address)
        return before

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

"""The tasks that have to answer before a job starts. Pure."""

from collections.abc import Collection
from collections.abc import Iterable

from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import Task


class Quorum:
    """Every parameter server, and some of the workers, whichever they are.

    Threading: immutable; safe from any thread.
    """

    def __init__(self, tasks: Iterable[Task], min_workers: int | None) -> None:
        """Creates the quorum of a cluster.

        Args:
            tasks: Its workers and parameter servers.
            min_workers: Number of workers that must answer; None: all.
        """
        self._tasks = frozenset(tasks)
        self._min_workers = min_workers

    def is_met(self, ready: Collection[Task]) -> bool:
        """Returns whether the job may start.

        Args:
            ready: The tasks that answer; tasks outside the cluster do not
                count.
        """
        missing = self._tasks.difference(ready)
        if self._min_workers is None or not missing:
            return not missing
        if any(task.job != WORKER for task in missing):
            return False
        num_workers = sum(task.job == WORKER for task in self._tasks)
        return num_workers - len(missing) >= self._min_workers

    def __str__(self) -> str:
        if self._min_workers is None:
            return "every task"
        return (
            "every parameter server and at least "
            f"{self._min_workers} of the workers "
            f"(min_workers={self._min_workers})"
        )


def require_min_workers(min_workers: int | None, num_workers: int) -> None:
    """Refuses a number of workers that a cluster cannot start with.

    Args:
        min_workers: The user's value, at least 1; None means all workers.
        num_workers: Number of workers of the cluster.

    Raises:
        ValueError: If it exceeds `num_workers`.
    """
    if min_workers is not None and min_workers > num_workers:
        raise ValueError(
            "min_workers must be None, to wait for all workers, or an integer "
            f"from 1 to the number of workers, here {num_workers}. Received: "
            f"min_workers={min_workers!r}"
        )

"""Workers that a function needs besides the one that runs it."""

import logging
import threading
from collections.abc import Collection

from tfps_plugin import errors
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.coordinator.elastic.uses import Use
from tfps_plugin.coordinator.members.membership import Membership

_logger = logging.getLogger("tfps_plugin.coordinator")


class WorkerAwayError(Exception):
    """A function was not called, because a worker that it needs is away."""


class PinnedWorkers:
    """Holds calls back as long as a worker that they need is away.

    A function needs the workers on which `tf.device` places a part of it.

    Threading: safe from any thread. Guarded by `_lock`: `_told`.
    """

    def __init__(self, membership: Membership, timeout_seconds: float) -> None:
        """Creates the object.

        Args:
            membership: Knows who is away.
            timeout_seconds: How long a call waits for a worker.
        """
        self._membership = membership
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        # Absences that the log has: the worker and its generation before.
        self._told: set[tuple[int, int]] = set()

    def require(self, workers: Collection[int]) -> dict[int, int]:
        """Returns the generations of workers that a call needs.

        Args:
            workers: Their indices.

        Raises:
            PlacementError: If one does not belong to the cluster: it was
                removed, and nobody waits for it.
            WorkerAwayError: If one is away; the call is to be made later.
            WorkerLostError: If one has been away for too long.
        """
        members = self._membership.indices
        for worker in workers:
            if worker not in members:
                raise self._removed(worker, members)
        generations = {w: self._membership.generation(w) for w in workers}
        for worker, generation in generations.items():
            if not self._membership.is_present(worker, generation):
                self._wait_for(worker, generation)
        return generations

    def keep(
        self, workers: Collection[int], *, also_leaving: bool = False
    ) -> Use:
        """Keeps workers that a call needs from leaving.

        Args:
            workers: Their indices.
            also_leaving: Whether the call may begin while one is about to
                leave.

        Returns:
            Their use, to be released when the call has ended.

        Raises:
            PlacementError: As `require`.
            WorkerAwayError: Also if one is about to leave.
            WorkerLostError: As `require`.
        """
        # Before it is known that they are there: so none can leave in between.
        use = self._membership.use(workers, also_leaving=also_leaving)
        if use is None:
            raise WorkerAwayError(f"Of the workers {workers}, one leaves.")
        try:
            self.require(workers)
        except BaseException:
            use.release()
            raise
        return use

    def are_lost(self, generations: dict[int, int]) -> list[int]:
        """Returns the workers that a call needed and that were lost since.

        Args:
            generations: As `require` returned them.
        """
        return [
            worker
            for worker, generation in generations.items()
            if not self._membership.is_present(worker, generation)
        ]

    def _removed(
        self, worker: int, members: Collection[int]
    ) -> errors.PlacementError:
        """Returns the error for a worker that is not a member."""
        tasks = self._membership.workers
        known = tasks[worker] if worker < len(tasks) else None
        return errors.PlacementError(
            f"A function was not called, because tf.device places a part of it "
            f"on worker {worker}, which does not belong to the cluster. "
            "Expected one of "
            f"{[f'/job:{WORKER}/task:{each}' for each in members]}. Received: "
            f"tf.device('/job:{WORKER}/task:{worker}'). What to do: (1) name "
            "another worker, in a new tf.function or before "
            "another model.compile(); (2) add the worker again, with "
            "coordinator.add_worker("
            f"{'its address' if known is None else repr(known.address)}). See "
            "docs/model_parallelism.md."
        )

    def _wait_for(self, worker: int, generation: int) -> None:
        """Raises the error for a worker that is away."""
        reason = self._membership.reasons.get(worker, "it is away")
        away_seconds = self._membership.away_seconds(worker)
        if away_seconds >= self._timeout_seconds:
            raise errors.WorkerLostError(
                f"A function has waited for worker {worker}, on which "
                "tf.device places a part of it. Expected the worker to come "
                f"back within {self._timeout_seconds:.0f} s. Received: away "
                f"for {away_seconds:.0f} s: {reason}. What to do: (1) start "
                "the worker again; it rejoins by itself; (2) repeat the call "
                "that raised this error; (3) allow more time with "
                "ClusterCoordinator(strategy, no_worker_timeout_seconds=...); "
                "(4) name another worker. See docs/model_parallelism.md."
            )
        with self._lock:
            is_news = (worker, generation) not in self._told
            self._told.add((worker, generation))
        if is_news:
            _logger.warning(
                "Functions that tf.device places in part on worker %d wait "
                "until it is back. Others go on. Received: %s",
                worker,
                reason,
            )
        raise WorkerAwayError(f"Worker {worker} is away: {reason}")

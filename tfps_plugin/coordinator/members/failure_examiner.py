"""Examination of failed closures: which task was lost, if any."""

import time
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin.coordinator.members import failures
from tfps_plugin.coordinator.members.inspector import Inspector
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.session_protocol import SessionLike

_BROKEN = "an earlier connection to it has broken this one"
_STALE = "it does not end a function that was given up"
# A function that was cancelled may take a moment to end.
_STALE_SECONDS = 1.0
# Failures with longer pauses have different causes.
_IN_A_ROW_SECONDS = 10.0


class FailureExaminer:
    """Finds the lost task behind the failure of a closure.

    A failure is only a suspicion; the suspects are probed, on the caller's
    thread. Losses are reported to the membership.

    Threading: safe from any thread. Without a lock: entries of `_stale` are
    assigned whole, and two threads that do so at the same time do no harm.
    """

    def __init__(
        self,
        session: SessionLike,
        membership: Membership,
        inspector: Inspector,
        stale_seconds: float = _STALE_SECONDS,
    ) -> None:
        """Creates the examiner.

        Args:
            session: The connection to the cluster.
            membership: Receives reports of lost tasks.
            inspector: Probes tasks.
            stale_seconds: How long a worker may fail calls because it has not
                ended a function that was given up.
        """
        self._session = session
        self._membership = membership
        self._inspector = inspector
        self._stale_seconds = stale_seconds
        # Times (monotonic) of the first and the latest such failure in a row,
        # by worker and generation.
        self._stale: dict[tuple[int, int], tuple[float, float]] = {}

    @property
    def _ps(self) -> Sequence[Any]:
        return tuple(self._session.parameter_servers)

    def stop(self) -> None:
        """Ends every pause between two probes."""
        self._inspector.stop()

    def examine(
        self,
        failure: failures.Failure,
        worker_index: int,
        generation: int,
        *,
        thoroughly: bool,
    ) -> BaseException | None:
        """Probes the suspects of a failure.

        Takes milliseconds when all suspects answer or refuse the connection,
        seconds when one is silent. Lanes of a worker that is found lost get
        nothing from then on.

        Args:
            failure: What the exception points at.
            worker_index: The worker that the closure ran on.
            generation: Its generation when the run began.
            thoroughly: Whether to probe every ps, suspect or not.

        Returns:
            The error for the user if a ps is lost and cannot be recovered,
            else None.
        """
        membership = self._membership
        if not membership.is_present(worker_index, generation):
            return None  # The loss is known, and the worker possibly back.
        for task in self._ps:
            if task.index in failure.ps and (error := self.examine_ps(task)):
                return error
        for index in failure.workers:
            if index in self._membership.indices:
                self._examine_worker(index)
        if failure.function_is_stale and self._is_lasting(
            worker_index, generation
        ):
            # Not only once failures are no longer excused: of many calls that
            # fail like this, one was seen to hang instead, for ever.
            membership.report_lost(worker_index, generation, _STALE)
            return None
        if not thoroughly:
            return None
        if membership.is_present(worker_index, generation):
            for task in self._ps:
                if error := self.examine_ps(task):
                    return error
        if not membership.excuses_failures:
            return self._replace_broken(failure, worker_index, generation)
        return None

    def examine_ps(self, task: Any) -> errors.ParameterServerLostError | None:
        """Probes a ps, and begins to recover it if it is lost.

        Returns:
            The error for the user if it is lost and cannot be recovered.
        """
        error = self._inspector.examine_ps(task)
        return None if error is None else self.ps_lost(task, error)

    def ps_lost(
        self, task: Any, error: errors.ParameterServerLostError
    ) -> errors.ParameterServerLostError | None:
        """Begins to recover a ps that is known to be lost.

        Args:
            task: The ps.
            error: The error for the user if it cannot be recovered.

        Returns:
            None if the recovery has begun, else `error`.
        """
        return None if self._membership.begin_recovery(task) else error

    def await_recovery(self) -> bool:
        """Probes every ps, and waits until the lost ones are recovered.

        Returns:
            Whether some were lost and are restored.

        Raises:
            ParameterServerLostError: If one is lost and cannot be recovered.
        """
        for task in self._ps:
            if error := self.examine_ps(task):
                raise error
        return self._membership.await_recovery()

    def set_back(self) -> None:
        """Restores a ps that answers, as if it had been lost.

        With it go all variables back to the last checkpoint, if the strategy
        restores them together. Does nothing without a checkpoint.
        """
        # It may have ended before this thread waits for it.
        if self._membership.begin_recovery(self._ps[0]):
            self._membership.await_recovery()

    def _examine_worker(self, worker_index: int) -> None:
        generation = self._membership.generation(worker_index)
        if not self._membership.is_present(worker_index, generation):
            return
        reason = self._inspector.why_lost(
            self._membership.workers[worker_index]
        )
        if reason is not None:
            self._membership.report_lost(worker_index, generation, reason)

    def _is_lasting(self, worker_index: int, generation: int) -> bool:
        """Returns whether a worker has had a stale function for too long."""
        if self._membership.is_recovering:
            return False
        now = time.monotonic()
        key = worker_index, generation
        first, latest = self._stale.get(key, (now, now))
        if now - latest > _IN_A_ROW_SECONDS:
            first = now
        self._stale[key] = first, now
        return now - first >= self._stale_seconds

    def _replace_broken(
        self, failure: failures.Failure, worker_index: int, generation: int
    ) -> BaseException | None:
        """Treats a task as lost that lives but is of no use any more."""
        # Only in that generation: another lane may have reported it already.
        if failure.broken_worker == worker_index:
            self._membership.report_lost(worker_index, generation, _BROKEN)
        for task in self._ps:
            if task.index == failure.broken_ps:
                return self.ps_lost(
                    task, self._inspector.ps_lost(task, _BROKEN)
                )
        return None

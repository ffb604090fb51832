"""Failed runs of a lane: retry the closure, or fail it."""

import dataclasses
import logging
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.cluster.calls.worker_calls import InFlightCall
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.error_notes import ErrorNotes
from tfps_plugin.coordinator.lanes.lane_queue import LaneQueue
from tfps_plugin.coordinator.members import failures
from tfps_plugin.coordinator.members.failure_examiner import FailureExaminer
from tfps_plugin.coordinator.members.failures import Failure
from tfps_plugin.coordinator.members.failures import FailureKind
from tfps_plugin.coordinator.members.failures import Verdict
from tfps_plugin.coordinator.members.kept_workers import KeptWorkers
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.members.pinned_workers import PinnedWorkers
from tfps_plugin.coordinator.members.pinned_workers import WorkerAwayError
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

_logger = logging.getLogger("tfps_plugin.coordinator")

# Number of times that a run is repeated if it failed while all tasks were
# healthy, because broken connections recover. Then the user gets its error.
_MAX_TRANSIENT_RETRIES = 5
_NUM_FAILURES_TO_WARN = 3
# Time between two attempts of a closure that waits for another worker.
_AWAY_SECONDS = 0.25


class Run(NamedTuple):
    """One attempt of a closure on this lane."""

    closure: Closure
    attempt: int
    generation: int
    began_at: float
    call: InFlightCall
    kept: KeptWorkers | None


class FailedRuns:
    """Decides about the failed runs of one lane.

    Guarantees: `handle` returns the closure to the queue, as failed or put
    back.
    Threading: `handle` and `succeeded` are called on the lane's thread; all
    else is safe from any. It has no lock.
    """

    def __init__(
        self,
        worker_index: int,
        queue: LaneQueue,
        membership: Membership,
        examiner: FailureExaminer,
        counters: Counters,
        event_board: events.Events,
        notes: ErrorNotes,
        pinned_workers: PinnedWorkers | None = None,
        on_retry: Callable[[int], None] = lambda worker_index: None,
    ) -> None:
        """Creates the object for one lane.

        Args:
            worker_index: Index of the worker task.
            queue: Takes closures back.
            membership: Says whether the worker is lost.
            examiner: Probes the suspects of a failure.
            counters: Counts failures and retries.
            event_board: Publishes retries.
            notes: Adds notes to exceptions of closures.
            pinned_workers: Knows the other workers that a run needs.
            on_retry: Called with the worker's index when a closure is run
                again.
        """
        self._worker_index = worker_index
        self._queue = queue
        self._membership = membership
        self._examiner = examiner
        self._counters = counters
        self._events = event_board
        self._notes = notes
        self._pinned_workers = pinned_workers
        self._on_retry = on_retry
        # Failures in a row while all tasks were healthy.
        self._num_failures = 0

    def succeeded(self) -> None:
        """Records that a run succeeded."""
        self._num_failures = 0

    @property
    def rest_seconds(self) -> float:
        """Seconds that the lane leaves closures to other lanes."""
        return failures.rest_seconds(self._num_failures)

    def handle(
        self, run: Run, error: BaseException, end: Callable[[], bool]
    ) -> None:
        """Decides about a run that raised, and returns its closure.

        Args:
            run: The run.
            error: Its exception.
            end: Ends the run before the user gets the exception; returns
                False if it was abandoned.
        """
        try:
            self._decide(run, error, end)
        except Exception as own_error:
            # The closure must end whatever goes wrong here: `join` waits.
            _logger.exception(
                "The failure of a function on worker %d could not be handled",
                self._worker_index,
            )
            self._queue.failed(run.closure, run.attempt, own_error)

    def _decide(
        self, run: Run, error: BaseException, end: Callable[[], bool]
    ) -> None:
        closure = run.closure
        cancellation = closure.cancellation
        if cancellation is not None and cancellation.started_at is not None:
            # It was told to end, so its error may be any.
            self._queue.put_back(closure, run.attempt)
            return
        if isinstance(error, WorkerAwayError):
            self._postpone(run)
            return
        failure = _failure_of(error, self._worker_index)
        if failure.kind is not FailureKind.USER and run.call.pinned:
            suspects = dict.fromkeys((*failure.workers, *run.call.pinned))
            failure = dataclasses.replace(failure, workers=tuple(suspects))
        if failure.kind is not FailureKind.USER:
            lost = self._examiner.examine(
                failure,
                self._worker_index,
                run.generation,
                thoroughly=self._is_repeated(closure),
            )
            if lost is not None:
                lost.__cause__ = error
                self._queue.failed(closure, run.attempt, lost)
                return
        lost_pinned = self._lost_pinned(run)
        verdict = failures.judge(
            # Whatever the error says, it may be the loss.
            FailureKind.SUSPECT_WORKER if lost_pinned else failure.kind,
            worker_is_lost=self._is_lost(run) or bool(lost_pinned),
            ps_was_away=self._membership.excuses_failures,
            num_transient_retries=closure.num_transient_retries,
            max_transient_retries=_MAX_TRANSIENT_RETRIES,
        )
        if verdict in (Verdict.RAISE, Verdict.GIVE_UP):
            if not end():
                return
            self._counters.increment("closures_failed")
            self._notes.add(error, self._worker_index)
            self._queue.failed(closure, run.attempt, error)
            return
        is_transient = verdict is Verdict.RUN_AGAIN_COUNTED
        self._count_failure(error, is_transient=is_transient)
        if closure.bound_to is not None:
            _logger.info(
                "A function that only worker %d may run is cancelled, because "
                "it does not run twice. Received: %s",
                self._worker_index,
                _short(error),
            )
        elif is_transient or self._membership.excuses_failures:
            self._queue.wait_before_retry(
                closure, failures.pause_seconds(closure.num_transient_retries)
            )
        if self._queue.put_back(
            closure,
            run.attempt,
            is_transient=is_transient,
            worker_is_lost=self.took_its_worker(run),
            lost_worker=lost_pinned[0] if lost_pinned else None,
        ):
            self._counters.increment("closures_retried")
            self._on_retry(self._worker_index)
            self._events.publish(
                events.ClosureRetried(
                    self._worker_index, run.attempt, _short(error)
                )
            )

    def _postpone(self, run: Run) -> None:
        """Puts a closure back that has to wait for another worker."""
        self._queue.wait_before_retry(run.closure, _AWAY_SECONDS)
        # Behind the others, which may not need that worker.
        self._queue.put_back(run.closure, run.attempt, behind_others=True)

    def _lost_pinned(self, run: Run) -> list[int]:
        """Returns the other workers that a run needed and that were lost."""
        if self._pinned_workers is None:
            return []
        return self._pinned_workers.are_lost(run.call.pinned)

    def _is_repeated(self, closure: Closure) -> bool:
        """Returns whether a failure is the second of its kind.

        A ps may be lost then that the text of the error does not name. Of bound
        closures, which run once, the failures of the lane count.
        """
        if closure.bound_to is None:
            return closure.num_transient_retries > 0
        return self._num_failures > 0

    def _count_failure(
        self, error: BaseException, *, is_transient: bool
    ) -> None:
        """Counts failures in a row while all tasks are healthy."""
        self._num_failures = self._num_failures + 1 if is_transient else 0
        if self._num_failures == _NUM_FAILURES_TO_WARN:
            _logger.warning(
                "Worker %d failed %d times in a row while all tasks answer; it "
                "may be unable to reach a parameter server. It gets fewer "
                "functions until one succeeds. Received: %s",
                self._worker_index,
                self._num_failures,
                _short(error),
            )

    def was_abandoned(self) -> None:
        """Records that a run was given up, and its closure runs again."""
        self._on_retry(self._worker_index)

    def took_its_worker(self, run: Run) -> bool:
        """Returns whether the run may be the cause of a worker's loss."""
        return not self._membership.excuses_failures and (
            self._is_lost(run) or bool(self._lost_pinned(run))
        )

    def _is_lost(self, run: Run) -> bool:
        """Returns whether the worker was lost since the run began."""
        return not self._membership.is_present(
            self._worker_index, run.generation
        )


def _failure_of(error: BaseException, worker_index: int) -> Failure:
    """Returns the failure that an exception suggests."""
    if not isinstance(error, tf.errors.OpError):
        # Only TensorFlow's errors can be about the cluster.
        return Failure(FailureKind.USER)
    return failures.classify(type(error).__name__, str(error), worker_index)


def _short(error: BaseException) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line[:200]}"

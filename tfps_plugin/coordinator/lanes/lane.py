"""One of the threads that drive a worker."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from typing import NamedTuple
from typing import Protocol

import tensorflow as tf

from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.calls.worker_calls import InFlightCall
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.error_notes import ErrorNotes
from tfps_plugin.coordinator.lanes.lane_queue import LaneQueue
from tfps_plugin.coordinator.members import failures
from tfps_plugin.coordinator.members.failures import Failure
from tfps_plugin.coordinator.members.failures import FailureKind
from tfps_plugin.coordinator.members.failures import Verdict
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters

logger = logging.getLogger("tfps_plugin")

# A run that failed although every task it touched is well is repeated this
# often before its error is the user's: connections break and heal.
_MAX_TRANSIENT_RETRIES = 5
_NUM_FAILURES_TO_WARN = 3


class MembershipView(Protocol):
    """What a lane asks of the membership."""

    def generation(self, worker_index: int) -> int:
        """How often the worker was re-admitted."""

    @property
    def num_changes(self) -> int:
        """Another number whenever the cluster has changed."""

    def is_present(self, worker_index: int, generation: int) -> bool:
        """Whether the worker takes part, still in that generation."""

    @property
    def excuses_failures(self) -> bool:
        """Whether closures may fail because a ps is or was away."""


class Examiner(Protocol):
    """Examines failures; see `FailureExaminer`."""

    def examine(
        self,
        failure: Failure,
        worker_index: int,
        generation: int,
        *,
        thoroughly: bool,
    ) -> BaseException | None:
        """Probes the suspects of a failure; see `FailureExaminer.examine`."""


class _Run(NamedTuple):
    """One attempt of a closure on this lane."""

    closure: Closure
    attempt: int
    generation: int
    since: float
    call: InFlightCall


class Lane:
    """Runs one closure after the other on one worker.

    The thread has an executor of its own, so that its remote calls neither
    wait for those of other lanes nor report their errors.

    Guarantees: each closure that the lane got from the queue is given back to
    it as done, failed or put back. After `abandon` the lane goes on with a
    new thread, and whatever the old one still brings is ignored.
    Guarded by `_lock`: the present run, the thread, the number of lives,
    whether the lane was joined.
    Never call while holding the lock: the queue, closures, the membership.
    """

    def __init__(
        self,
        worker_index: int,
        lane_index: int,
        device_of: Callable[[], str],
        queue: LaneQueue,
        membership: MembershipView,
        examiner: Examiner,
        counters: Counters,
        event_board: events.Events,
        notes: ErrorNotes,
        worker_calls: WorkerCalls | None = None,
        *,
        number: int = 0,
    ) -> None:
        """Creates the lane; it runs nothing before `start`.

        Args:
            worker_index: Index of the worker task.
            lane_index: Index of the lane among all lanes of all workers.
            device_of: Returns the device that closures are placed on.
            queue: Where closures come from.
            membership: Says whether the worker is lost.
            examiner: Probes the suspects of a failure.
            counters: Where runs and retries are counted.
            event_board: Where retries are published.
            notes: Says more about what closures raise.
            worker_calls: The calls of all lanes of the worker.
            number: Of the lane, among those of its worker.
        """
        self._notes = notes
        self._worker_calls = worker_calls
        self._worker_index = worker_index
        self._lane_index = lane_index
        self._number = number
        self._device_of = device_of
        self._queue = queue
        self._membership = membership
        self._examiner = examiner
        self._counters = counters
        self._events = event_board
        self._lock = threading.Lock()
        self._run: _Run | None = None
        self._life = 0
        self._has_ended = False
        # Failures in a row while all tasks were well; the lane's thread only.
        self._num_failures = 0
        self._thread = self._new_thread(self._life)

    def start(self) -> None:
        """Has the lane run closures; its thread starts with the first one."""
        self._queue.add(self._worker_index, self._start_thread, self._number)

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the lane's end, after the queue was stopped."""
        with self._lock:
            self._has_ended = True
            thread = self._thread
            if thread.ident is None:
                # Nothing was ever to be done, or the start comes too late.
                return True
        thread.join(timeout_seconds)
        return not thread.is_alive()

    def _start_thread(self) -> None:
        with self._lock:
            # Whoever started it may have been interrupted after that.
            if not self._has_ended and self._thread.ident is None:
                self._thread.start()

    def busy_since(self) -> float | None:
        """Since when (monotonic) the present closure runs, if one does."""
        with self._lock:
            return None if self._run is None else self._run.since

    def hangs_on(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        """Whether a call from before a time needs any of these ps."""
        with self._lock:
            run = self._run
        return run is not None and run.call.needs(parameter_servers, before)

    def ignores_cancellation(self, since: float) -> bool:
        """Whether a call goes on that was cancelled before a time.

        Args:
            since: The time (monotonic, in seconds).
        """
        with self._lock:
            run = self._run
        if run is None or not run.call.is_under_way:
            return False
        cancellation = run.closure.cancellation
        started_at = None if cancellation is None else cancellation.started_at
        return started_at is not None and started_at < since

    def abandon(self) -> None:
        """Waits no longer for the present closure: it runs again elsewhere.

        The thread may hang in a remote call for ever; a new one takes its
        place.
        """
        with self._lock:
            run = self._run
            if run is None:
                return
            # Started before it is anybody's to join.
            thread = self._new_thread(self._life + 1)
            thread.start()
            self._run = None
            self._life += 1
            given_up, self._thread = self._thread, thread
        if self._worker_calls is not None and given_up.ident is not None:
            self._worker_calls.give_up(given_up.ident)
        self._counters.increment("closures_abandoned")
        self._queue.put_back(
            run.closure,
            run.attempt,
            worker_is_lost=self._took_its_worker(run),
        )

    def _new_thread(self, life: int) -> threading.Thread:
        # A daemon: it may hang in a remote call that nobody can end.
        return threading.Thread(
            target=self._drive,
            args=(life,),
            name=f"tfps-worker-{self._worker_index}-lane-{self._lane_index}",
            daemon=True,
        )

    def _drive(self, life: int) -> None:
        """Runs closures until the queue is stopped, or until abandoned."""
        executor = tensorflow_execution.new_synchronous_executor()
        with (
            tensorflow_execution.executor_scope(executor),
            _KeptDevice() as device,
        ):
            while (
                closure := self._queue.get(self._worker_index, self._number)
            ) is not None:
                run = _Run(
                    closure,
                    closure.num_attempts,
                    self._membership.generation(self._worker_index),
                    time.monotonic(),
                    InFlightCall(),
                )
                with self._lock:
                    self._run = run
                self._make(run, device)
                tensorflow_execution.forget_error(executor)
                # What a closure holds must not live until the next one.
                del closure, run
                with self._lock:
                    if self._life != life:
                        return
                    self._run = None
                if self._num_failures:
                    self._queue.rest(failures.rest_seconds(self._num_failures))

    def _make(self, run: _Run, kept: "_KeptDevice") -> None:
        """Makes one run and says how it ended."""
        try:
            device = self._device_of()
            kept.change_to(device)
            context = DispatchContext(
                worker_index=self._worker_index,
                lane_index=self._lane_index,
                generation=run.generation,
                device=device,
                worker_calls=self._worker_calls,
                num_changes=self._membership.num_changes,
                call=run.call,
                cancellation=run.closure.cancellation,
            )
            with dispatch_context.dispatching(context):
                result = run.closure.call()
        except BaseException as error:
            # SystemExit of a closure is an error like any other: it must
            # reach the user, not end the lane.
            self._failed(run, error)
            return
        if not self._end(run):
            return
        self._num_failures = 0
        # First, so that whoever has joined finds it counted.
        self._counters.increment("closures_done")
        self._queue.done(run.closure, run.attempt, result)

    def _end(self, run: _Run) -> bool:
        """Ends the present run; False if it was abandoned before."""
        with self._lock:
            if self._run is not run:
                return False
            self._run = None
            return True

    def _failed(self, run: _Run, error: BaseException) -> None:
        """Says what becomes of a run that raised."""
        try:
            self._decide(run, error)
        except Exception as own_error:
            # Whatever goes wrong here, the closure must end: join waits.
            logger.exception("Deciding about a failed closure failed")
            self._queue.failed(run.closure, run.attempt, own_error)

    def _decide(self, run: _Run, error: BaseException) -> None:
        closure = run.closure
        cancellation = closure.cancellation
        if cancellation is not None and cancellation.started_at is not None:
            # It was told to end. What it failed by may say anything.
            self._queue.put_back(closure, run.attempt)
            return
        failure = _failure_of(error, self._worker_index)
        if failure.kind is not FailureKind.USER:
            lost = self._examiner.examine(
                failure,
                self._worker_index,
                run.generation,
                # What fails twice may hang on a ps that the text does not
                # name.
                thoroughly=closure.num_transient_retries > 0,
            )
            if lost is not None:
                lost.__cause__ = error
                self._queue.failed(closure, run.attempt, lost)
                return
        verdict = failures.judge(
            failure.kind,
            worker_is_lost=self._is_lost(run),
            ps_was_away=self._membership.excuses_failures,
            num_transient_retries=closure.num_transient_retries,
            max_transient_retries=_MAX_TRANSIENT_RETRIES,
        )
        if verdict in (Verdict.RAISE, Verdict.GIVE_UP):
            if not self._end(run):
                return
            self._counters.increment("closures_failed")
            self._notes.add(error, self._worker_index)
            self._queue.failed(closure, run.attempt, error)
            return
        is_transient = verdict is Verdict.RUN_AGAIN_COUNTED
        self._count_failure(error, is_transient=is_transient)
        if is_transient or self._membership.excuses_failures:
            self._queue.wait_before_retry(
                closure, failures.pause_seconds(closure.num_transient_retries)
            )
        if self._queue.put_back(
            closure,
            run.attempt,
            is_transient=is_transient,
            worker_is_lost=self._took_its_worker(run),
        ):
            self._counters.increment("closures_retried")
            self._events.publish(
                events.ClosureRetried(
                    self._worker_index, run.attempt, _short(error)
                )
            )

    def _count_failure(
        self, error: BaseException, *, is_transient: bool
    ) -> None:
        """Counts failures in a row while all tasks are well."""
        self._num_failures = self._num_failures + 1 if is_transient else 0
        if self._num_failures == _NUM_FAILURES_TO_WARN:
            logger.warning(
                "Worker %d has failed %d times in a row, while every task "
                "answers: it may not reach a parameter server. It gets fewer "
                "functions until one succeeds. Received: %s",
                self._worker_index,
                self._num_failures,
                _short(error),
            )

    def _took_its_worker(self, run: _Run) -> bool:
        """Whether the run may be why its worker was lost."""
        return self._is_lost(run) and not self._membership.excuses_failures

    def _is_lost(self, run: _Run) -> bool:
        """Whether the worker was lost since the run began."""
        return not self._membership.is_present(
            self._worker_index, run.generation
        )


class _KeptDevice:
    """The device that a thread places operations on.

    It is kept from one closure to the next: to enter it takes as long as all
    else that a lane does for one.
    """

    def __init__(self) -> None:
        self._name: str | None = None
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> "_KeptDevice":
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.close()

    def change_to(self, name: str) -> None:
        """Leaves the device before, if it is another one."""
        if name != self._name:
            self._name = None
            self._scope.close()
            self._scope.enter_context(tf.device(name))
            self._name = name


def _failure_of(error: BaseException, worker_index: int) -> Failure:
    """What the exception points at; only TensorFlow's own can be ours."""
    if not isinstance(error, tf.errors.OpError):
        return Failure(FailureKind.USER)
    return failures.classify(type(error).__name__, str(error), worker_index)


def _short(error: BaseException) -> str:
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line[:200]}"

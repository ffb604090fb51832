"""Lane: one of the threads that drive a worker."""

import contextlib
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.calls.worker_calls import InFlightCall
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls
from tfps_plugin.coordinator.lanes.failed_runs import FailedRuns
from tfps_plugin.coordinator.lanes.failed_runs import Run
from tfps_plugin.coordinator.lanes.lane_queue import LaneQueue
from tfps_plugin.coordinator.members.kept_workers import KeptWorkers
from tfps_plugin.coordinator.members.membership import Membership
from tfps_plugin.coordinator.members.pinned_workers import PinnedWorkers
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.variables.chief import worker_fetches

# Takes what was called, where, and when that began and ended.
OnMade = Callable[[Callable[[], Any], DispatchContext, float, float], None]


def _nothing(
    call: Callable[[], Any],
    context: DispatchContext,
    begun_at: float,
    ended_at: float,
) -> None:
    del call, context, begun_at, ended_at


class Lane:
    """Runs closures on one worker, one after the other.

    The thread has an executor of its own, so that its remote calls neither
    wait for those of other lanes nor report their errors.

    Guarantees: each closure that the lane gets from the queue is returned to
    it as done, failed or put back. After `abandon` the lane continues with a
    new thread, and ignores whatever the old thread still reports.
    Guarded by `_lock`: the current run, the abandoned calls, the thread, the
    number of abandoned threads, whether the lane was joined.
    Never call while holding the lock: the queue, closures, the membership.
    """

    def __init__(
        self,
        worker_index: int,
        lane_index: int,
        device_of: Callable[[], str],
        queue: LaneQueue,
        membership: Membership,
        failed_runs: FailedRuns,
        counters: Counters,
        worker_calls: WorkerCalls | None = None,
        pinned_workers: PinnedWorkers | None = None,
        *,
        number: int = 0,
        on_made: OnMade = _nothing,
    ) -> None:
        """Creates the lane; it runs nothing before `start`.

        Args:
            worker_index: Index of the worker task.
            lane_index: Index of the lane among all lanes of all workers.
            device_of: Returns the device that closures are placed on.
            queue: The source of closures.
            membership: Says whether the worker is lost.
            failed_runs: Decides about runs that raise.
            counters: Counts runs.
            worker_calls: The calls of all lanes of the worker.
            pinned_workers: Holds calls back whose other workers are away.
            number: The lane's number among those of its worker.
            on_made: Called with each closure that has succeeded, where it ran,
                and when it began and ended, in seconds.
        """
        self._worker_calls = worker_calls
        self._pinned_workers = pinned_workers
        self._worker_index = worker_index
        self._lane_index = lane_index
        self._number = number
        self._on_made = on_made
        self._device_of = device_of
        self._queue = queue
        self._membership = membership
        self._failed_runs = failed_runs
        self._counters = counters
        self._lock = threading.Lock()
        self._run: Run | None = None
        # Generations of the worker, and calls that may still go on there. Not
        # their closures, which hold what the user has passed.
        self._abandoned: list[tuple[int, InFlightCall]] = []
        self._life = 0
        self._has_ended = False
        self._thread = self._new_thread(self._life)

    def start(self) -> None:
        """Makes the lane available; the first closure starts its thread."""
        self._queue.add(self._worker_index, self._start_thread, self._number)

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the end of the lane, after the queue was stopped.

        Returns:
            Whether its thread has ended, or never started.
        """
        with self._lock:
            self._has_ended = True
            thread = self._thread
            if thread.ident is None:
                # There was never any work, or it comes too late.
                return True
        thread.join(timeout_seconds)
        return not thread.is_alive()

    def _start_thread(self) -> None:
        with self._lock:
            # The caller may start it twice, if it is interrupted in between.
            if not self._has_ended and self._thread.ident is None:
                self._thread.start()

    def busy_since(self) -> float | None:
        """Returns the start (monotonic) of the current run; None: idle."""
        with self._lock:
            return None if self._run is None else self._run.began_at

    def hangs_on(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        """Returns whether a call from before a time needs any of the ps."""
        with self._lock:
            run = self._run
        return run is not None and run.call.needs(parameter_servers, before)

    def abandoned_call_needs(
        self, parameter_servers: Collection[int], before: float
    ) -> bool:
        """Returns whether an abandoned call goes on that needs any of the ps.

        Args:
            parameter_servers: Indices of ps.
            before: Only calls that began before this time (monotonic) count.
        """
        # A worker that was readmitted since knows nothing of the call.
        generation = self._membership.generation(self._worker_index)
        with self._lock:
            abandoned = list(self._abandoned)
        return any(
            began_in == generation and call.needs(parameter_servers, before)
            for began_in, call in abandoned
        )

    def awaits_lost(self) -> bool:
        """Returns whether the call needs another worker that is lost."""
        with self._lock:
            run = self._run
        return (
            run is not None
            and self._pinned_workers is not None
            and bool(self._pinned_workers.are_lost(run.call.pinned))
        )

    def ignores_cancellation(self, since: float) -> bool:
        """Returns whether a call goes on that was cancelled before a time.

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
        """Abandons the current closure: it runs again elsewhere.

        One that is bound to the worker is cancelled instead. Its call in
        flight is cancelled, but TensorFlow may be unable to end it: the thread
        may hang in it forever, so a new thread replaces it.
        """
        with self._lock:
            run = self._run
            if run is None:
                return
            # Started before anybody can join it.
            thread = self._new_thread(self._life + 1)
            thread.start()
            self._run = None
            self._abandoned = [
                each for each in self._abandoned if each[1].is_under_way
            ]
            self._abandoned.append((run.generation, run.call))
            self._life += 1
            given_up, self._thread = self._thread, thread
        if self._worker_calls is not None and given_up.ident is not None:
            self._worker_calls.give_up(given_up.ident)
        if given_up.ident is not None:
            worker_fetches.give_up(given_up.ident)
        if run.kept is not None:
            run.kept.give_up()
        self._counters.increment("closures_abandoned")
        if self._queue.put_back(
            run.closure,
            run.attempt,
            worker_is_lost=self._failed_runs.took_its_worker(run),
        ):
            self._failed_runs.was_abandoned()
        # Whoever waits for the closure does not take this for its failure.
        run.call.cancel()

    def _new_thread(self, life: int) -> threading.Thread:
        # A daemon, because it may hang in a remote call that cannot be ended.
        return threading.Thread(
            target=self._drive,
            args=(life,),
            name=f"tfps-worker-{self._worker_index}-lane-{self._lane_index}",
            daemon=True,
        )

    def _drive(self, life: int) -> None:
        """Runs closures until the queue is stopped or the thread abandoned."""
        executor = tensorflow_execution.new_synchronous_executor()
        with (
            tensorflow_execution.executor_scope(executor),
            _KeptDevice() as device,
        ):
            while (
                closure := self._queue.get(self._worker_index, self._number)
            ) is not None:
                run = Run(
                    closure,
                    closure.num_attempts,
                    self._membership.generation(self._worker_index),
                    time.monotonic(),
                    InFlightCall(),
                    None
                    if self._pinned_workers is None
                    else KeptWorkers(
                        self._pinned_workers,
                        is_bound=closure.bound_to is not None,
                    ),
                )
                with self._lock:
                    self._run = run
                self._make(run, device)
                if run.kept is not None:
                    # Once its end was told: a worker that leaves then may
                    # have parts of the result.
                    run.kept.release()
                tensorflow_execution.forget_error(executor)
                # Frees what the closure holds before the next one arrives.
                del closure, run
                with self._lock:
                    if self._life != life:
                        return
                    self._run = None
                if rest_seconds := self._failed_runs.rest_seconds:
                    self._queue.rest(rest_seconds)

    def _make(self, run: Run, kept: "_KeptDevice") -> None:
        """Makes one run, and reports how it ended."""
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
                other_workers=run.kept,
            )
            with dispatch_context.dispatching(context):
                result = run.closure.call()
                ended_at = time.monotonic()
        except BaseException as error:
            # Also SystemExit of a closure: it must reach the user, and not
            # end the lane.
            self._failed_runs.handle(run, error, lambda: self._end(run))
            return
        if not self._end(run):
            return
        self._failed_runs.succeeded()
        self._on_made(run.closure.call, context, run.began_at, ended_at)
        # Counted first, so that callers of `join` see it.
        self._counters.increment("closures_done")
        self._queue.done(run.closure, run.attempt, result)

    def _end(self, run: Run) -> bool:
        """Ends the current run; returns False if it was abandoned before."""
        with self._lock:
            if self._run is not run:
                return False
            self._run = None
            return True


class _KeptDevice:
    """Device scope of a thread, kept from one closure to the next.

    Entering it takes as long as everything else that a lane does for a
    closure.
    """

    def __init__(self) -> None:
        self._name: str | None = None
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> "_KeptDevice":
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.close()

    def change_to(self, name: str) -> None:
        """Enters the scope of a device, unless it is the current one."""
        if name != self._name:
            self._name = None
            self._scope.close()
            self._scope.enter_context(tf.device(name))
            self._name = name

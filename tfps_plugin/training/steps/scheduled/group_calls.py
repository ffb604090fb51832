"""Scheduled functions that all workers run together, one after another."""

import collections
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.elastic import safe_points
from tfps_plugin.training.steps.scheduled.span_calls import SpanCalls
from tfps_plugin.training.steps.scheduled.waiting_call import WaitingCall
from tfps_plugin.training.synchronous.backup.late_gradients import LateGradients
from tfps_plugin.training.synchronous.spans import Spans
from tfps_plugin.training.synchronous.together import GlobalSteps
from tfps_plugin.training.synchronous.together import Together
from tfps_plugin.training.synchronous.together import make_together
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0
# Number of calls that may wait before callers do.
_CAPACITY = 256
# Number of calls that workers make without waiting for the chief.
_MOST_AT_A_TIME = 64
# Number of spans in a row without a step, for want of a worker that can reach
# all parameter servers. Connections recover.
_MOST_FAILED = 5


class WorkerGroupCalls:
    """Calls of one coordinator that all of its workers make together.

    Calls that wait become one span, if workers can make them one after another:
    the chief only waits for the last. A worker that is lost misses what is left
    of its span. A worker whose input has ended, likewise; if that of all has,
    `OutOfRangeError` is raised.

    Guarantees: calls are made in the order in which they were put. Each
    listener is told once. An error reaches the next caller of the coordinator,
    and cancels the calls that wait.
    Guarded by `_changed`: everything but the coordinator.
    Never call while holding it: the coordinator, listeners.
    """

    def __init__(self, coordinator: Any) -> None:
        """Begins without calls and without a thread.

        Args:
            coordinator: A `ClusterCoordinator`, which keeps this object.
        """
        self._coordinator = weakref.ref(coordinator)
        self._changed = threading.Condition()
        self._waiting: collections.deque[WaitingCall] = collections.deque()
        self._is_running = False
        self._is_stopped = False

    @property
    def is_idle(self) -> bool:
        """True if no call waits or runs."""
        with self._changed:
            return not self._is_running

    def put(self, call: Any, step: Any, listener: Any) -> None:
        """Adds a call; see `GroupCalls`.

        Raises:
            UnsupportedError: If workers cannot make the step together.
            ClosureCancelledError: If the coordinator was closed.
        """
        coordinator: Any = self._coordinator()
        if step.together is None:
            with coordinator.functions.tracing_scope():
                make_together(coordinator.strategy, step)
        self._add(call, step.together, listener, coordinator)

    def _add(
        self, call: Any, together: Together, listener: Any, coordinator: Any
    ) -> None:
        in_round = coordinator.round
        with self._changed:
            while len(self._waiting) >= _CAPACITY and not self._is_stopped:
                self._changed.wait(_WAKE_UP_SECONDS)
            if self._is_stopped:
                raise errors.ClosureCancelledError(
                    "The coordinator was closed and takes no function any "
                    "more; expected an open one. Create a new "
                    "tfps.ClusterCoordinator(strategy)."
                )
            self._waiting.append(
                WaitingCall(call, together, listener, in_round)
            )
            if self._is_running:
                return
            self._is_running = True
        threading.Thread(
            target=self._run_all,
            args=(coordinator,),
            name="tfps-group-calls",
            daemon=True,
        ).start()

    def wait_until_idle(self, timeout_seconds: float | None) -> bool:
        """Waits until no call waits or runs; see `GroupCalls`."""
        deadline = (
            None
            if timeout_seconds is None
            else time.monotonic() + timeout_seconds
        )
        with self._changed:
            while self._is_running:
                left = _WAKE_UP_SECONDS
                if deadline is not None:
                    left = min(left, deadline - time.monotonic())
                    if left <= 0:
                        return False
                self._changed.wait(left)
        return True

    def cancel_waiting(self) -> int:
        """Cancels calls that wait; returns their number."""
        with self._changed:
            cancelled = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for each in cancelled:
            each.tell(ClosureState.CANCELLED)
        return len(cancelled)

    def stop(self) -> None:
        """Cancels calls that wait, and refuses others."""
        with self._changed:
            self._is_stopped = True
        self.cancel_waiting()

    # On the thread of the calls.

    def _run_all(self, coordinator: Any) -> None:
        with safe_points.held_off():
            self._run(coordinator)

    def _run(self, coordinator: Any) -> None:
        num_failed = 0
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                calls = self._take()
            try:
                left = self._make(coordinator, calls)
                num_failed = num_failed + 1 if len(left) == len(calls) else 0
                if num_failed >= _MOST_FAILED:
                    raise _cannot_reach_all()
            except BaseException as error:
                coordinator.end_round(error)
                left = [each for each in calls if not each.has_ended]
            with self._changed:
                self._waiting.extendleft(reversed(left))
            self._cancel_outdated(coordinator.round)

    def _cancel_outdated(self, round_now: int) -> None:
        """Cancels calls that an error has cancelled on its way to a caller."""
        with self._changed:
            outdated = [
                each for each in self._waiting if each.round != round_now
            ]
            self._waiting = collections.deque(
                each for each in self._waiting if each.round == round_now
            )
            self._changed.notify_all()
        for each in outdated:
            each.tell(ClosureState.CANCELLED)

    def _take(self) -> list[WaitingCall]:
        """Takes calls for one span; needs the lock."""
        calls = [self._waiting.popleft()]
        while (
            self._waiting
            and len(calls) < _MOST_AT_A_TIME
            and self._waiting[0].may_follow(calls[0])
        ):
            calls.append(self._waiting.popleft())
        self._changed.notify_all()
        return calls

    def _make(
        self, coordinator: Any, calls: Sequence[WaitingCall]
    ) -> list[WaitingCall]:
        """Makes calls; returns those that were not made.

        Raises:
            BaseException: If they cannot be made.
        """
        spans = connection.present().part(Spans)
        members, use = spans.wait_for_members(
            coordinator,
            calls[0].together.step.num_workers,
            calls[0].call.pinned_workers,
        )
        try:
            return self._make_on(coordinator, calls, spans, members)
        finally:
            # Not before results are known: a worker that leaves has them
            # fetched.
            use.release()

    def _make_on(
        self,
        coordinator: Any,
        calls: Sequence[WaitingCall],
        spans: Spans,
        members: Sequence[int],
    ) -> list[WaitingCall]:
        """Makes calls on some workers; see `_make`."""
        together = calls[0].together
        late = LateGradients(together.step.num_backup, coordinator.counters)
        made = SpanCalls(calls, late)
        steps = GlobalSteps(coordinator, together)
        span = spans.begin(
            lambda: steps.span(members, len(calls), made.make, lambda: None)
        )
        while not span.wait(_WAKE_UP_SECONDS):
            pass
        coordinator.counters.increment("steps_done", span.num_done)
        if span.error is not None and not chief_reads.is_about_the_cluster(
            span.error
        ):
            raise span.error
        if span.error is not None or span.left:
            # Who has left may be lost, and so may a ps.
            connection.present().part(RecoveryGate).wait()
        steps.require_recovered(span)
        late.settle(None if span.error is not None else span.num_parts)
        spans.exclude_failed(
            span, coordinator.absent_workers, has_recovered=steps.has_recovered
        )
        for each in calls[: span.num_done]:
            each.done()
        left = list(calls[span.num_done :])
        for each in left:
            each.results.clear()
        if left and not span.num_done and set(made.ended) == set(members):
            raise next(iter(made.ended.values()))
        return left


def _cannot_reach_all() -> errors.WorkerLostError:
    return errors.WorkerLostError(
        "No worker can make a synchronous step, although all of them answer; "
        f"expected one of {_MOST_FAILED} attempts to succeed. Check that "
        "workers reach all parameter servers."
    )

"""Steps of one epoch in spans: with one call of each worker and ps."""

import abc
import time
from collections.abc import Callable
from typing import Any

from tfps_plugin.cluster.chief import connection
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.split_reader import SplitReader
from tfps_plugin.training.bounded.member_calls import MemberCalls
from tfps_plugin.training.steps.epoch import worker_read_run
from tfps_plugin.training.steps.epoch.step_account import Claim
from tfps_plugin.training.steps.epoch.step_run import StepRun
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.step_calls import StepCalls
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.synchronous.span import Span
from tfps_plugin.training.synchronous.spans import Spans
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0
# Number of spans in a row without a step, for want of a worker that can reach
# all parameter servers. Connections recover.
_MOST_FAILED = 5


class SpanRun(StepRun):
    """Runs the steps that Keras requests as spans.

    While one span is being made, Keras requests the steps of the next.

    Threading: see `StepRun`.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
        *,
        steps_per_closure: Callable[[int, int], int],
    ) -> None:
        """Begins an epoch.

        Args:
            coordinator: Runs the closures.
            functions: The model's step.
            progress: Receives the results of steps.
            steps_per_closure: Returns the number of steps to pack. Takes the
                number of steps that ran so far, and the number that makes a
                call long enough.
        """
        super().__init__(coordinator, functions, progress)
        # A worker's tokens are for one closure at a time.
        coordinator.limit_in_flight(1)
        self._steps_per_closure = steps_per_closure
        self._num_failed = 0
        # Number of recovered ps when the span began.
        self._num_recovered = 0
        self._span: Span | None = None
        self._claim: Claim | None = None

    def request(self, num_steps: int) -> None:
        self._is_synced = False
        self._end_span(wait=False)
        if self._is_over():
            self._fell_short = True
            raise StopIteration
        self._account.ask(num_steps)
        while self._account.unclaimed >= self._limit() and not self._is_over():
            self._begin_span(self._limit())
        self._progress.update()

    def _limit(self) -> int:
        """Returns the number of steps of the next span, at most."""
        return self._steps_of_a_span()

    def _steps_of_a_span(self) -> int:
        """Returns the number of steps that make a span long enough."""
        return self._steps_of_a_call()

    def _steps_of_a_call(self) -> int:
        """Returns the number of steps that make a call long enough."""
        return self._steps_per_closure(self.done, self._pace.most_steps)

    def _prepare(
        self, present: list[int], num_steps: int
    ) -> tuple[list[int], int]:
        """Prepares a span.

        Args:
            present: Indices of the workers that answer.
            num_steps: Number of steps, at most.

        Returns:
            The members of the span, and its number of steps.
        """
        return present, num_steps

    def _begin_span(self, num_steps: int) -> None:
        """Begins a span, after the present one has ended."""
        self._end_span(wait=True)
        num_steps = min(num_steps, self._account.unclaimed)
        if not num_steps or self._is_over():
            return
        spans = connection.present().part(Spans)
        present, use = spans.wait_for_members(
            self._coordinator, self._capacity, self._functions.pinned_workers
        )
        members, num_steps = self._prepare(present, num_steps)
        self._claim = self._account.claim(num_steps)
        self._num_recovered = self._coordinator.counters.value("ps_recovered")

        def make() -> Span:
            span = self._new_span(members, num_steps)
            span.use = use
            return span

        self._span = spans.begin(make)

    @property
    @abc.abstractmethod
    def _capacity(self) -> int:
        """Number of workers that the step was traced for."""

    @abc.abstractmethod
    def _new_span(self, members: list[int], num_steps: int) -> Span:
        """Returns a span that has not begun."""

    def _end_span(self, *, wait: bool) -> None:
        """Takes over the result of the span, if it has ended.

        Args:
            wait: Whether to wait for its end.

        Raises:
            BaseException: The error that a step raised.
        """
        span, claim = self._span, self._claim
        if span is None or claim is None or not (wait or span.has_ended):
            return
        while not span.wait(_WAKE_UP_SECONDS):
            pass
        self._span, self._claim = None, None
        self._account.settle(claim, span.num_done)
        self._coordinator.counters.increment("steps_done", span.num_done)
        self._join()
        self._took_over(span)
        if span.error is not None and not chief_reads.is_about_the_cluster(
            span.error
        ):
            raise span.error
        if span.error is not None or span.left:
            # Who has left may be lost, and so may a ps.
            connection.present().part(RecoveryGate).wait()
        self._recovered(span)
        counters = self._coordinator.counters
        connection.present().part(Spans).exclude_failed(
            span,
            self._coordinator.absent_workers,
            has_recovered=counters.value("ps_recovered") > self._num_recovered,
        )
        self._count_failures(span)

    def _recovered(self, span: Span) -> None:
        """Called when the cluster has recovered from what a span met.

        Raises:
            BaseException: If training cannot go on.
        """

    def _count_failures(self, span: Span) -> None:
        """Gives up if no worker can reach all ps, though all answer.

        Raises:
            BaseException: The exception of a worker.
        """
        if span.num_done or not span.member_errors:
            self._num_failed = 0
            return
        self._num_failed += 1
        if self._num_failed >= _MOST_FAILED:
            raise next(iter(span.member_errors.values()))

    def _took_over(self, span: Span) -> None:
        """Called when a span has ended, and no step has raised."""

    def _settle(self) -> None:
        while self.asked > self.done and not self._is_over():
            self._begin_span(self._limit())
            self._end_span(wait=True)
        self._end_span(wait=True)
        if self._account.withdraw_unclaimed():
            self._fell_short = True

    def _take_counted(self) -> Counted:
        return {}

    @abc.abstractmethod
    def _is_over(self) -> bool:
        """Returns whether the input has ended, or the run was closed."""


class WorkerReadSpanRun(SpanRun):
    """Spans on input that workers read for themselves."""

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
        *,
        reader: SplitReader,
        renew: Callable[[], SplitReader],
        take_in_workers: Callable[[], None],
        element_spec: Any,
        num_steps: int | None,
        steps_per_closure: Callable[[int, int], int],
    ) -> None:
        """Begins an epoch; see `WorkerReadRun`."""
        self._calls = StepCalls(functions, element_spec)
        functions.states.require_any_order()
        super().__init__(
            coordinator,
            functions,
            progress,
            steps_per_closure=steps_per_closure,
        )
        self._element_spec = element_spec
        self._num_steps = num_steps
        self._num_told = 0
        self._reader = reader
        self._renew: Callable[[], SplitReader] | None = renew
        self._take_in_workers = take_in_workers

    def request(self, num_steps: int) -> None:
        self._take_in_workers()
        if self._num_steps is not None:
            super().request(num_steps)
            return
        is_first = not self._num_told
        self._num_told += num_steps
        if is_first and not self.has_more(0):
            self._fell_short = True
            raise StopIteration
        self._progress.update()

    def has_more(self, num_yielded: int) -> bool:
        """Waits until another step has run, or none will.

        Args:
            num_yielded: Number of steps that Keras was told of.

        Returns:
            Whether more than `num_yielded` steps have run.
        """
        self.reach_safe_point()
        self._is_synced = False
        self._end_span(wait=self.done <= num_yielded)
        while True:
            if self._span is None and not self._is_over():
                self._account.ask(self._limit() - self._account.unclaimed)
                self._begin_span(self._limit())
            if self.done > num_yielded or self._span is None:
                return self.done > num_yielded
            self._end_span(wait=True)

    def _limit(self) -> int:
        limit = super()._limit()
        if self._num_steps is None:
            return limit
        return max(1, min(limit, self._num_steps - self._account.claimed))

    def _settle(self) -> None:
        if self._num_steps is None:
            self._end_span(wait=True)
            self._account.withdraw_unclaimed()
        super()._settle()

    def _trace_again(self) -> None:
        self._calls = StepCalls(self._functions, self._element_spec)

    def _is_over(self) -> bool:
        if self._is_closed or not self._reader.is_over:
            return self._is_closed
        if self._renew is None or self.done:
            return True
        self._reader = self._renew()
        self._renew = None
        return False

    def close(self) -> None:
        super().close()
        self._reader.close()

    def _make_steps(
        self, worker: int, num_steps: int, most: int, calls: MemberCalls
    ) -> bool:
        """Makes steps on a worker, on the thread of its lane.

        Args:
            worker: Index of the worker.
            num_steps: Number of steps.
            most: Largest number of steps in a call.
            calls: Receives the calls.

        Returns:
            Whether the input was long enough.
        """
        left = num_steps
        reader = self._reader
        while left > 0:
            # Others would wait for a worker that waits for a split.
            with reader.reading(waits=False) as share:
                if share is None:
                    return False
                if share.is_infinite and self._num_steps is None:
                    raise worker_read_run.endless()
                begun_at = time.monotonic()
                wanted = min(left, most)
                if not calls.begins(worker, wanted):
                    return False
                made = self._calls.make(share, wanted)
                calls.has_ended(worker, made.num_steps)
                ended_at = time.monotonic()
                self._pace.observe(made.num_steps, ended_at - begun_at)
                self._rate(
                    made.num_steps,
                    begun_at,
                    ended_at,
                    made.input_seconds,
                    together=True,
                )
                if made.num_steps < wanted:
                    share.exhausted()
                left -= made.num_steps
                if made.num_steps:
                    self._progress.report(made.outputs)
        return True

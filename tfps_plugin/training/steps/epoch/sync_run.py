"""Steps of one epoch that all workers make together."""

import abc
import collections
import itertools
import logging
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin.cluster.chief import connection
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs import batch_cutter
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.inputs.batch_cutter import BatchCutter
from tfps_plugin.inputs.split_reader import SplitReader
from tfps_plugin.training.steps.epoch import worker_read_run
from tfps_plugin.training.steps.epoch.step_account import Claim
from tfps_plugin.training.steps.epoch.step_run import StepRun
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.step_calls import StepCalls
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.steps.traced.step_functions import Together
from tfps_plugin.training.steps.tuning import packing
from tfps_plugin.training.synchronous.span import Span
from tfps_plugin.training.synchronous.span import Spans
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

_logger = logging.getLogger("tfps_plugin")

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0
# Number of spans in a row without a step, for want of a worker that can reach
# all parameter servers. Connections recover.
_MOST_FAILED = 5


class SyncRun(StepRun):
    """Runs the steps that Keras requests as spans of global steps.

    While one span is being made, Keras requests the steps of the next.

    Threading: see `StepRun`.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
        *,
        together: Together,
        steps_per_closure: Callable[[int, int], int],
    ) -> None:
        """Begins an epoch.

        Args:
            coordinator: Runs the closures.
            functions: The model's step.
            progress: Receives the results of steps.
            together: What workers and ps need to make a step together.
            steps_per_closure: Returns the number of steps to pack. Takes the
                number of steps that ran so far, and the number that makes a
                call long enough.
        """
        super().__init__(coordinator, functions, progress)
        # A worker's tokens are for one closure at a time.
        coordinator.limit_in_flight(1)
        self._together = together
        self._steps_per_closure = steps_per_closure
        self._num_failed = 0
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
        """Returns the number of steps of a span."""
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
        members, num_steps = self._prepare(self._present(), num_steps)
        self._claim = self._account.claim(num_steps)
        spans = connection.present().part(Spans)
        self._num_recovered = self._coordinator.counters.value("ps_recovered")
        self._span = spans.begin(
            lambda: Span(
                self._coordinator,
                *self._together,
                members,
                num_steps,
                self._make,
                self._account.wake,
            )
        )

    def _present(self) -> list[int]:
        """Waits until a worker is present; returns those that take part.

        Raises:
            WorkerLostError: If there is none for too long.
        """
        while True:
            absent = self._coordinator.absent_workers
            present = [
                worker
                for worker in range(self._coordinator.num_workers)
                if worker not in absent
            ]
            if present:
                return connection.present().part(Spans).members(present)
            self._coordinator.schedule(_nothing)
            self._coordinator.join()

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
        if span.error is not None and not self._has_recovered():
            # Some ps may have made more steps than others.
            raise span.error
        connection.present().part(Spans).exclude_failed(
            span, self._coordinator.absent_workers
        )
        self._count_failures(span)

    def _has_recovered(self) -> bool:
        """Returns whether all variables went back since the span began."""
        counters = self._coordinator.counters
        return counters.value("ps_recovered") > self._num_recovered

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

    @abc.abstractmethod
    def _make(self, worker: int, num_steps: int) -> bool:
        """Makes steps on a worker, on the thread of its lane.

        Args:
            worker: Index of the worker.
            num_steps: Number of steps.

        Returns:
            Whether the input was long enough.
        """


class WorkerReadSyncRun(SyncRun):
    """Synchronous steps on input that workers read for themselves."""

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
        *,
        reader: SplitReader,
        renew: Callable[[], SplitReader],
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
            together=functions.synchronous(
                functions.on_iterator(element_spec), element_spec
            ),
            steps_per_closure=steps_per_closure,
        )
        self._num_steps = num_steps
        self._num_told = 0
        self._reader = reader
        self._renew: Callable[[], SplitReader] | None = renew

    def request(self, num_steps: int) -> None:
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

    def _make(self, worker: int, num_steps: int) -> bool:
        del worker
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
                made = self._calls.make(share, left)
                self._pace.observe(made.num_steps, time.monotonic() - begun_at)
                if made.num_steps < left:
                    share.exhausted()
                left -= made.num_steps
                if made.num_steps:
                    self._progress.report(made.outputs)
        return True


class ChiefReadSyncRun(SyncRun):
    """Synchronous steps on batches that the chief reads, and cuts for workers.

    A batch with fewer examples than workers goes to as many workers as it has
    examples.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
        *,
        codec: BatchCodec,
        batches: Iterator[tf.Tensor],
        steps_per_closure: Callable[[int, int], int],
    ) -> None:
        """Begins an epoch; see `ChiefReadRun`."""
        # Shares of batches are smaller than batches.
        codec = codec.of_any_size()
        self._function = functions.on_group(codec)
        functions.states.require_whole_batches()
        super().__init__(
            coordinator,
            functions,
            progress,
            together=functions.synchronous(self._function, codec.decoded_spec),
            steps_per_closure=steps_per_closure,
        )
        self._batches = batches
        self._cutter = BatchCutter(codec)
        # Batches that no span has taken, with their numbers of examples.
        self._held: collections.deque[tuple[tf.Tensor, int]] = (
            collections.deque()
        )
        # Those of the present span, and the part of each member.
        self._taken: list[tuple[tf.Tensor, int]] = []
        self._groups: dict[int, tf.Tensor] = {}

    def request(self, num_steps: int) -> None:
        read = list(itertools.islice(self._batches, num_steps))
        if len(read) < num_steps:
            self._fell_short = True
        if not read:
            raise StopIteration
        self._held += [(one, self._cutter.num_examples(one)) for one in read]
        super().request(len(read))

    def _limit(self) -> int:
        # The chief holds the batches of a span.
        return min(super()._limit(), packing.MOST_STEPS_AT_FIRST)

    def _prepare(
        self, present: list[int], num_steps: int
    ) -> tuple[list[int], int]:
        num_members = max(1, min(len(present), self._held[0][1]))
        shares: list[tf.Tensor] = []
        self._taken = []
        while len(shares) < num_steps:
            batch, num_examples = self._held[0]
            if max(1, min(len(present), num_examples)) != num_members:
                # Another number of members: the next span.
                break
            self._taken.append(self._held.popleft())
            shares.append(self._cutter.cut(batch, num_members))
        members = present[:num_members]
        group_MKC = tf.stack(shares, 1)
        self._groups = {
            worker: group_MKC[place] for place, worker in enumerate(members)
        }
        return members, len(shares)

    def _took_over(self, span: Span) -> None:
        # Steps that were not made have to be made with the same batches.
        self._held.extendleft(reversed(self._taken[span.num_done :]))
        if span.error is not None:
            # All variables go back to a checkpoint.
            return
        num_examples = sum(
            batch_cutter.size_of_share(size, place, len(span.members))
            for place, worker in enumerate(span.members)
            for _, size in self._taken[span.num_parts(worker) : span.num_done]
        )
        if num_examples:
            _logger.warning(
                "%d examples of this epoch were not trained on, because a "
                "worker that had its part of some batches was lost. The steps "
                "went on without it; later batches are for the other workers.",
                num_examples,
            )

    def _is_over(self) -> bool:
        return self._is_closed

    def _make(self, worker: int, num_steps: int) -> bool:
        begun_at = time.monotonic()
        result = self._function(self._groups[worker])
        self._pace.observe(num_steps, time.monotonic() - begun_at)
        self._progress.report(result.outputs)
        return True


def _nothing() -> None:
    """Runs on any worker: there is one."""

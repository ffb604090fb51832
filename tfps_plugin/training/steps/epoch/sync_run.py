"""Steps of one epoch that all workers make together."""

import collections
import itertools
import logging
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs import batch_cutter
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.inputs.batch_cutter import BatchCutter
from tfps_plugin.inputs.split_reader import SplitReader
from tfps_plugin.training.bounded.member_calls import MemberCalls
from tfps_plugin.training.steps.epoch import worker_read_run
from tfps_plugin.training.steps.epoch.late_batches import LateBatches
from tfps_plugin.training.steps.epoch.span_run import SpanRun
from tfps_plugin.training.steps.epoch.span_run import WorkerReadSpanRun
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.steps.tuning import packing
from tfps_plugin.training.synchronous.span import Span
from tfps_plugin.training.synchronous.together import GlobalSteps
from tfps_plugin.training.synchronous.together import Together

_logger = logging.getLogger("tfps_plugin.training")

# With backup workers, the end of a span waits for those that are late, so there
# should be few. This is the number of calls that are long enough in one span.
_CALLS_WITH_BACKUP = 4
# The chief holds the batches of a span. Then, this many at most.
_MOST_BATCHES_WITH_BACKUP = 200


class WorkerReadSyncRun(WorkerReadSpanRun):
    """Synchronous steps on input that workers read for themselves."""

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
        super().__init__(
            coordinator,
            functions,
            progress,
            reader=reader,
            renew=renew,
            take_in_workers=take_in_workers,
            element_spec=element_spec,
            num_steps=num_steps,
            steps_per_closure=steps_per_closure,
        )
        together = self._make_global_steps()
        self._late = LateBatches(together.step.num_backup, coordinator.counters)

    def _make_global_steps(self) -> Together:
        spec = self._element_spec
        together = self._functions.synchronous(
            self._functions.on_iterator(spec), spec
        )
        self._global_steps = GlobalSteps(self._coordinator, together)
        self._num_workers = together.step.num_workers
        return together

    def _trace_again(self) -> None:
        super()._trace_again()
        self._make_global_steps()

    def finish(self) -> None:
        super().finish()
        self._late.report()

    def _steps_of_a_span(self) -> int:
        return self._steps_per_closure(
            self.done, _num_calls(self._late) * self._pace.most_steps
        )

    def _new_span(self, members: list[int], num_steps: int) -> Span:
        return self._global_steps.span(
            members, num_steps, self._make, self._account.wake
        )

    @property
    def _capacity(self) -> int:
        return self._num_workers

    def _recovered(self, span: Span) -> None:
        self._global_steps.require_recovered(span)

    def _took_over(self, span: Span) -> None:
        self._late.settle(None if span.error is not None else span.num_parts)

    def _make(self, worker: int, num_steps: int) -> bool:
        if not self._late.num_backup:
            return self._make_steps(worker, num_steps, num_steps, MemberCalls())
        # The first step that the worker may still make: others make those
        # before without it, if it is late.
        place = 0
        reader = self._reader
        while place < num_steps:
            # Others would wait for a worker that waits for a split.
            with reader.reading(waits=False) as share:
                if share is None:
                    return False
                if share.is_infinite and self._num_steps is None:
                    raise worker_read_run.endless()
                begun_at = time.monotonic()
                made = self._calls.make(share, num_steps)
                self._pace.observe(made.num_steps, time.monotonic() - begun_at)
                place += made.num_steps
                if made.place is not None:
                    place = made.place
                if place < num_steps:
                    share.exhausted()
                self._late.note(worker, made.num_steps)
                if made.num_steps:
                    self._progress.report(made.outputs)
        return True


class ChiefReadSyncRun(SpanRun):
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
        self._codec = codec = codec.of_any_size()
        self._function = functions.on_group(codec)
        functions.states.require_whole_batches()
        super().__init__(
            coordinator,
            functions,
            progress,
            steps_per_closure=steps_per_closure,
        )
        together = self._make_global_steps()
        self._late = LateBatches(together.step.num_backup, coordinator.counters)
        self._batches = batches
        self._cutter = BatchCutter(codec)
        # Batches that no span has taken, with their numbers of examples.
        self._held: collections.deque[tuple[tf.Tensor, int]] = (
            collections.deque()
        )
        # Those of the present span, and the part of each member.
        self._taken: list[tuple[tf.Tensor, int]] = []
        self._groups: dict[int, tf.Tensor] = {}

    def _make_global_steps(self) -> Together:
        together = self._functions.synchronous(
            self._function, self._codec.decoded_spec
        )
        self._global_steps = GlobalSteps(self._coordinator, together)
        self._num_workers = together.step.num_workers
        return together

    def _trace_again(self) -> None:
        self._function = self._functions.on_group(self._codec)
        self._make_global_steps()

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
        return min(
            super()._limit(),
            _MOST_BATCHES_WITH_BACKUP
            if self._late.num_backup
            else packing.MOST_STEPS_AT_FIRST,
        )

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

    def _new_span(self, members: list[int], num_steps: int) -> Span:
        return self._global_steps.span(
            members, num_steps, self._make, self._account.wake
        )

    @property
    def _capacity(self) -> int:
        return self._num_workers

    def _recovered(self, span: Span) -> None:
        self._global_steps.require_recovered(span)

    def _took_over(self, span: Span) -> None:
        # Steps that were not made have to be made with the same batches.
        self._held.extendleft(reversed(self._taken[span.num_done :]))
        self._late.settle(None if span.error is not None else span.num_parts)
        if span.error is not None:
            # All variables go back to a checkpoint.
            return
        if self._late.num_backup:
            taken = self._taken[: span.num_done]
            num_examples = sum(size for _, size in taken) - span.num_examples
        else:
            num_examples = sum(
                batch_cutter.size_of_share(size, place, len(span.members))
                for place, worker in enumerate(span.members)
                for _, size in self._taken[
                    span.num_parts(worker) : span.num_done
                ]
            )
        if not span.left:
            self._late.leave_out(num_examples)
        elif num_examples:
            _logger.warning(
                "%d examples of this epoch were not trained on, because a "
                "worker that had its part of some batches was lost%s. The "
                "steps went on without it; later batches are for the other "
                "workers.",
                num_examples,
                ", or was late" if self._late.num_backup else "",
            )

    def finish(self) -> None:
        super().finish()
        self._late.report()

    def _steps_of_a_span(self) -> int:
        return self._steps_per_closure(
            self.done, _num_calls(self._late) * self._pace.most_steps
        )

    def _is_over(self) -> bool:
        return self._is_closed

    def _make(self, worker: int, num_steps: int) -> bool:
        begun_at = time.monotonic()
        result = self._function(self._groups[worker])
        if self._late.num_backup:
            num_steps, _ = result.fetch_progress()
            self._late.note(worker, num_steps)
        self._pace.observe(num_steps, time.monotonic() - begun_at)
        self._progress.report(result.outputs)
        return True


def _num_calls(late: LateBatches) -> int:
    """Returns the number of calls that are long enough in a span."""
    return _CALLS_WITH_BACKUP if late.num_backup else 1

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
from tfps_plugin.training.steps.epoch.span_run import SpanRun
from tfps_plugin.training.steps.epoch.span_run import WorkerReadSpanRun
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.steps.tuning import packing
from tfps_plugin.training.synchronous.span import Span
from tfps_plugin.training.synchronous.together import GlobalSteps

_logger = logging.getLogger("tfps_plugin")


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
            element_spec=element_spec,
            num_steps=num_steps,
            steps_per_closure=steps_per_closure,
        )
        self._global_steps = GlobalSteps(
            coordinator,
            functions.synchronous(
                functions.on_iterator(element_spec), element_spec
            ),
        )

    def _new_span(self, members: list[int], num_steps: int) -> Span:
        return self._global_steps.span(
            members, num_steps, self._make, self._account.wake
        )

    def _recovered(self, span: Span) -> None:
        self._global_steps.require_recovered(span)

    def _make(self, worker: int, num_steps: int) -> bool:
        return self._make_steps(worker, num_steps, num_steps, MemberCalls())


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
        codec = codec.of_any_size()
        self._function = functions.on_group(codec)
        functions.states.require_whole_batches()
        super().__init__(
            coordinator,
            functions,
            progress,
            steps_per_closure=steps_per_closure,
        )
        self._global_steps = GlobalSteps(
            coordinator,
            functions.synchronous(self._function, codec.decoded_spec),
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

    def _new_span(self, members: list[int], num_steps: int) -> Span:
        return self._global_steps.span(
            members, num_steps, self._make, self._account.wake
        )

    def _recovered(self, span: Span) -> None:
        self._global_steps.require_recovered(span)

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

"""Steps of one epoch with bounded staleness."""

import collections
import functools
import itertools
import logging
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import cast

import tensorflow as tf

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.inputs.split_reader import SplitReader
from tfps_plugin.training.bounded import shares
from tfps_plugin.training.bounded.bounded_span import BoundedSpan
from tfps_plugin.training.bounded.member_calls import MemberCalls
from tfps_plugin.training.steps.epoch.span_run import SpanRun
from tfps_plugin.training.steps.epoch.span_run import WorkerReadSpanRun
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.step_functions import Gated
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.steps.tuning import packing
from tfps_plugin.training.synchronous.span import Span

_logger = logging.getLogger("tfps_plugin.training")


class _Staleness:
    """The largest staleness of an epoch.

    Threading: only the thread that runs `fit` uses it.
    """

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        """Begins an epoch.

        Args:
            coordinator: Has the counters.
        """
        self._counters = coordinator.counters
        self._largest = 0

    def note(self, span: Span) -> int:
        """Takes over what the parameter servers have seen.

        Args:
            span: A span that has ended.

        Returns:
            The number of steps that may have been applied, and are made again.
        """
        bounded = cast(BoundedSpan, span)
        largest = bounded.largest_staleness
        self._largest = max(self._largest, largest)
        self._counters.raise_to("largest_lead", largest)
        return bounded.num_in_doubt

    def tell(self, max_staleness: int) -> None:
        """Logs the result of the epoch."""
        _logger.info(
            "The largest staleness of this epoch was %d: at most so many steps "
            "ahead of the slowest worker has any worker begun one "
            "(max_staleness=%d).",
            self._largest,
            max_staleness,
        )


class WorkerReadBoundedRun(WorkerReadSpanRun):
    """Steps with bounded staleness on input that workers read themselves."""

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
        *,
        element_spec: Any,
        reader: SplitReader,
        renew: Callable[[], SplitReader],
        take_in_workers: Callable[[], None],
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
        self._staleness = _Staleness(coordinator)
        self._gated = self._new_gated()

    def _new_gated(self) -> Gated:
        return self._functions.gated(
            self._functions.on_iterator(self._element_spec), self._element_spec
        )

    def _trace_again(self) -> None:
        super()._trace_again()
        self._gated = self._new_gated()

    def _steps_of_a_span(self) -> int:
        return _num_present(self._coordinator) * shares.steps_of_a_member(
            self._steps_of_a_call(), self._gated.max_staleness
        )

    def _prepare(
        self, present: list[int], num_steps: int
    ) -> tuple[list[int], int]:
        if self._functions.choose_updates():
            self._trace_again()
        return present[:num_steps], num_steps

    def _new_span(self, members: list[int], num_steps: int) -> Span:
        return BoundedSpan(
            self._coordinator,
            *self._gated,
            members,
            num_steps,
            functools.partial(self._make, self._steps_of_a_call()),
            self._account.wake,
        )

    @property
    def _capacity(self) -> int:
        return self._gated.gate.num_workers

    def _took_over(self, span: Span) -> None:
        num_in_doubt = self._staleness.note(span)
        if num_in_doubt:
            self._begins_again(num_in_doubt)

    def finish(self) -> None:
        """See `StepRun`; also tells of the largest staleness."""
        super().finish()
        self._staleness.tell(self._gated.max_staleness)

    def _make(
        self, most: int, worker: int, num_steps: int, calls: MemberCalls
    ) -> bool:
        return self._make_steps(worker, num_steps, most, calls)


class ChiefReadBoundedRun(SpanRun):
    """Steps with bounded staleness on batches that the chief reads.

    Members get whole batches, in turns.
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
        self._function = functions.on_group(codec)
        functions.states.require_overlap()
        super().__init__(
            coordinator,
            functions,
            progress,
            steps_per_closure=steps_per_closure,
        )
        self._codec = codec
        self._batches = batches
        self._staleness = _Staleness(coordinator)
        self._gated = self._new_gated()
        # Batches that no span has taken.
        self._held: collections.deque[tf.Tensor] = collections.deque()
        # Those of the present span, by member.
        self._taken: dict[int, list[tf.Tensor]] = {}

    def _new_gated(self) -> Gated:
        return self._functions.gated(self._function, self._codec.decoded_spec)

    def _trace_again(self) -> None:
        self._function = self._functions.on_group(self._codec)
        self._gated = self._new_gated()

    def request(self, num_steps: int) -> None:
        read = list(itertools.islice(self._batches, num_steps))
        if len(read) < num_steps:
            self._fell_short = True
        if not read:
            raise StopIteration
        self._held += read
        super().request(len(read))

    def _steps_of_a_call(self) -> int:
        # As without a bound.
        return min(super()._steps_of_a_call(), packing.MOST_STEPS_AT_FIRST)

    def _steps_of_a_span(self) -> int:
        return _num_present(self._coordinator) * shares.batches_of_a_member(
            self._steps_of_a_call(), self._gated.max_staleness
        )

    def _prepare(
        self, present: list[int], num_steps: int
    ) -> tuple[list[int], int]:
        if self._functions.choose_updates():
            self._trace_again()
        members = present[:num_steps]
        taken = [self._held.popleft() for _ in range(num_steps)]
        self._taken = {
            worker: taken[place :: len(members)]
            for place, worker in enumerate(members)
        }
        return members, num_steps

    def _new_span(self, members: list[int], num_steps: int) -> Span:
        return BoundedSpan(
            self._coordinator,
            *self._gated,
            members,
            num_steps,
            functools.partial(
                self._make, self._taken, self._function, self._steps_of_a_call()
            ),
            self._account.wake,
        )

    @property
    def _capacity(self) -> int:
        return self._gated.gate.num_workers

    def _took_over(self, span: Span) -> None:
        # Steps that were not made have to be made with the same batches.
        left = [
            (turn, place, batch)
            for place, (worker, batches) in enumerate(self._taken.items())
            for turn, batch in enumerate(batches)
            if turn >= span.num_parts(worker)
        ]
        left.sort(key=lambda each: each[:2])
        self._held.extendleft(batch for _, _, batch in reversed(left))
        num_in_doubt = self._staleness.note(span)
        if num_in_doubt:
            self._begins_again(num_in_doubt)

    def finish(self) -> None:
        """See `StepRun`; also tells of the largest staleness."""
        super().finish()
        self._staleness.tell(self._gated.max_staleness)

    def _is_over(self) -> bool:
        return self._is_closed

    def _make(
        self,
        taken: dict[int, list[tf.Tensor]],
        function: Callable[..., Any],
        most: int,
        worker: int,
        num_steps: int,
        calls: MemberCalls,
    ) -> bool:
        batches = taken[worker]
        for first in range(0, num_steps, most):
            if self._is_closed:
                return False
            group_KC = tf.stack(batches[first : first + most])
            begun_at = time.monotonic()
            if not calls.begins(worker, group_KC.shape[0]):
                return False
            result = function(group_KC)
            calls.has_ended(worker, result.fetch_progress()[0])
            self._pace.observe(group_KC.shape[0], time.monotonic() - begun_at)
            self._progress.report(result.outputs)
        return True


def _num_present(coordinator: ClusterCoordinator) -> int:
    """Returns the number of workers that are not lost; at least one."""
    return max(1, coordinator.num_workers - len(coordinator.absent_workers))

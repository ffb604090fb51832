"""Loops of a worker over the batches of one call."""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.strategy.replicas.device_copies import DeviceCopies
from tfps_plugin.training.local.local_rounds import LocalRounds
from tfps_plugin.training.local.local_rounds import RoundOutput
from tfps_plugin.training.steps.metrics.counted_sums import CountedSums
from tfps_plugin.training.steps.traced import batches_ahead
from tfps_plugin.training.steps.traced import input_waits
from tfps_plugin.training.steps.traced import round_sources
from tfps_plugin.training.steps.traced.batches_ahead import BatchAhead
from tfps_plugin.training.steps.traced.batches_ahead import GroupBatches
from tfps_plugin.training.steps.traced.input_waits import Waits
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.lookup import graph_checks


class StepsOutput(NamedTuple):
    """Result of a call of many steps.

    Attributes:
        progress: A float64 vector, one tensor so that it is one message: the
            number of steps that ran, fewer than requested if the input ended;
            and the seconds that they waited for input, not a number if nobody
            knows.
        outputs: Result of the last step; zeros if none ran.
        counted: Result of `CountedSums.pack`.
        place: Number of the first step that a worker may still make together
            with others; None if it does not leave out any.
    """

    progress: tf.Tensor
    outputs: Any
    counted: dict[str, list[tf.Tensor]]
    place: tf.Tensor | None = None

    def fetch_progress(self) -> tuple[int, float]:
        """Fetches the number of steps, and the seconds that they waited.

        Raises:
            UnavailableError: If the worker was lost.
        """
        made, seconds = chief_reads.require_shape(
            worker_fetches.array(self.progress), self.progress.shape
        )
        return int(made), float(seconds)


class NumberedOutputs(NamedTuple):
    """Result of a step that not every worker makes.

    Attributes:
        number: Number of the step, an int64 scalar.
        outputs: Result of the step itself.
    """

    number: tf.Tensor
    outputs: Any


class StepLoops:
    """Loops that run many steps, to be traced.

    Threading: only the thread that traces uses it.
    """

    def __init__(
        self,
        one_step: Any,
        counted_sums: CountedSums,
        local_rounds: LocalRounds | None = None,
        copy_devices: Sequence[str] = (),
    ) -> None:
        """Takes the step.

        Args:
            one_step: A `tf.function` of one batch; of a `CopiedBatch`, if
                anything of the batch is copied.
            counted_sums: The metric states that each call returns.
            local_rounds: Rounds of local steps, if loops are to make these.
            copy_devices: The devices to which batches are copied ahead.
        """
        self._one_step = one_step
        self._counted_sums = counted_sums
        self._local_rounds = local_rounds
        self._copy_devices = copy_devices
        # By the type of a batch; only what makes local steps.
        self._rounds: dict[str, Callable[..., RoundOutput]] = {}

    def prepare_iterator(self, element_spec: Any) -> None:
        """Traces what `steps_over_iterator` needs as functions of their own.

        Args:
            element_spec: Type of a batch.
        """
        if self._local_rounds is not None:
            copies = self._copies(element_spec)
            self._rounds[repr(element_spec)] = self._local_rounds.traced(
                copies.step_spec,
                round_sources.of_iterator(element_spec, copies),
            )

    def prepare_group(self, codec: BatchCodec) -> None:
        """Traces what `steps_over_group` needs as functions of their own.

        Args:
            codec: Codec of the batches.
        """
        if self._local_rounds is not None:
            copies = self._copies(codec.decoded_spec)
            self._rounds[repr(codec.element_spec)] = self._local_rounds.traced(
                copies.step_spec,
                round_sources.of_group(codec, GroupBatches(codec, copies)),
            )

    def steps_over_iterator(
        self, iterator: Any, num_steps: tf.Tensor
    ) -> StepsOutput:
        """Runs `num_steps` steps, or as many as there are batches for.

        If others make steps meanwhile, it leaves these out.
        """

        local_round = self._rounds.get(repr(iterator.element_spec))
        copies = self._copies(iterator.element_spec)
        first, waits = _first(num_steps > 0, iterator, copies)
        return self._loop(
            copies.step_spec,
            lambda over, now: (over < num_steps) & now.is_there(),
            lambda done, now: [now.take()],
            first=first,
            following=lambda done, over: batches_ahead.of_iterator(
                over < num_steps, iterator, copies
            ),
            local_round=local_round,
            of_round=lambda done, now: (iterator, now, num_steps - done),
            waits=waits if local_round is None else None,
            wait=input_waits.ahead,
            waited=input_waits.total,
        )

    def rounds_over_iterator(
        self, steps_of_a_round: int, iterator: Any, num_steps: tf.Tensor
    ) -> StepsOutput:
        """Runs as many whole rounds as fit into `num_steps`.

        The iterator must be infinite: the batches of an incomplete round would
        be lost.
        """

        copies = self._copies(iterator.element_spec)
        if copies.are_made:
            return self._rounds_ahead(
                steps_of_a_round, iterator, num_steps, copies
            )

        def batches(done: tf.Tensor, _: Any) -> list[Any]:
            with tf.device(graph_checks.CPU):
                return [iterator.get_next() for _ in range(steps_of_a_round)]

        def wait(waits: Waits, begun_at: tf.Tensor) -> Waits:
            return input_waits.at_once(waits, begun_at, steps_of_a_round)

        return self._loop(
            iterator.element_spec,
            lambda done, _: done + steps_of_a_round <= num_steps,
            batches,
            first=tf.constant(0),
            following=lambda done, over: tf.constant(0),
            waits=input_waits.none(),
            wait=wait,
            waited=lambda waits, ended_at: wait(waits, ended_at).seconds,
        )

    def _rounds_ahead(
        self,
        steps_of_a_round: int,
        iterator: Any,
        num_steps: tf.Tensor,
        copies: DeviceCopies,
    ) -> StepsOutput:
        """Runs rounds, each of which takes the first batch of the next one.

        The other batches are copied while the steps before them compute.
        """

        def batches(done: tf.Tensor, now: BatchAhead) -> list[Any]:
            with tf.device(graph_checks.CPU):
                others = [
                    iterator.get_next() for _ in range(steps_of_a_round - 1)
                ]
            return [now.take(), *map(copies.of, others)]

        first, waits = _first(steps_of_a_round <= num_steps, iterator, copies)
        return self._loop(
            copies.step_spec,
            lambda done, now: (
                (done + steps_of_a_round <= num_steps) & now.is_there()
            ),
            batches,
            first=first,
            following=lambda done, over: batches_ahead.of_iterator(
                done + steps_of_a_round <= num_steps, iterator, copies
            ),
            waits=waits,
            wait=input_waits.ahead,
            waited=input_waits.total,
        )

    def steps_over_group(
        self, codec: BatchCodec, group_KC: tf.Tensor
    ) -> StepsOutput:
        """Runs a step on each batch of a group."""
        num_batches = tf.shape(group_KC)[0]
        copies = self._copies(codec.decoded_spec)
        group = GroupBatches(codec, copies)
        return self._loop(
            copies.step_spec,
            lambda over, _: over < num_batches,
            lambda done, now: [group.take(group_KC, done, now)],
            first=group.ahead(group_KC, 0),
            following=lambda done, over: group.ahead(group_KC, done),
            local_round=self._rounds.get(repr(codec.element_spec)),
            of_round=lambda done, now: (
                group_KC,
                done,
                now,
                num_batches - done,
            ),
        )

    def _copies(self, element_spec: Any) -> DeviceCopies:
        """Returns the copies that are made of batches of a type."""
        return DeviceCopies(element_spec, self._copy_devices)

    def _loop(
        self,
        element_spec: Any,
        goes_on: Callable[[tf.Tensor, Any], tf.Tensor],
        batches: Callable[[tf.Tensor, Any], Sequence[Any]],
        *,
        first: Any,
        following: Callable[[tf.Tensor, tf.Tensor], Any],
        local_round: Callable[..., RoundOutput] | None = None,
        of_round: Callable[[tf.Tensor, Any], Any] | None = None,
        waits: Waits | None = None,
        wait: Callable[[Waits, tf.Tensor], Waits] | None = None,
        waited: Callable[[Waits, tf.Tensor], tf.Tensor] | None = None,
    ) -> StepsOutput:
        """Runs one step after another, or one round of local steps.

        Args:
            element_spec: Type of the step's argument.
            goes_on: Returns whether there is another round. Takes the number
                of steps that are over and the latest value of `following`.
            batches: Returns the batches of the round. Takes the number of
                steps done, and that value.
            first: A value that stands for the first batches.
            following: Returns the value for the batches after so many steps.
                Takes the number that is done, and the number that is over.
            local_round: A round of local steps; None: each step is by itself.
            of_round: Returns the arguments of `local_round`; takes the same as
                `batches`.
            waits: Waits for input before the loop; None: they are unknown.
            wait: Adds the wait of a round, if they are known. Takes the waits
                before, and when the next round began.
            waited: Returns the sum of the waits in the end, in seconds, if they
                are known. Takes those before the last round, and when it ended.
        """
        # The loop needs the types of a step's results in advance.
        traced = self._one_step.get_concrete_function(element_spec)
        specs = tf.nest.map_structure(_spec, traced.structured_outputs)
        is_numbered = isinstance(specs, NumberedOutputs)
        if is_numbered:
            # The next batch waits for the number, and nothing else: else each
            # ps would have to report that it has got its parcel.
            tensorflow_graphs.come_before_effects(traced, 0)
            specs = specs.outputs
        self._counted_sums.begin()

        # The number of steps done; and of those that are over, if it differs.
        def steps(counts: list[tf.Tensor], outputs: Any, now: Any) -> Any:
            """Returns the same after a round, and its batches."""
            if local_round is not None and of_round is not None:
                made = local_round(*of_round(counts[0], now))
                return (
                    [counts[0] + made.num_steps],
                    made.outputs,
                    made.following,
                    [],
                )
            taken = batches(counts[0], now)
            for batch in taken:
                done, result = counts[0] + 1, self._one_step(batch)
                counts, outputs = [done], result
                if is_numbered:
                    place = tf.cast(result.number, tf.int32) + 1
                    counts, outputs = [done, place], result.outputs
            return counts, outputs, following(counts[0], counts[-1]), taken

        def body(
            counts: list[tf.Tensor],
            outputs: Any,
            now: Any,
            waits: list[tf.Tensor],
        ) -> Any:
            begun_at = input_waits.now(counts) if waits else None
            counts, outputs, now, taken = steps(counts, outputs, now)
            if waits and wait is not None:
                added = wait(Waits(*waits), begun_at)
                # The batches of this round, or of the next one.
                arrived_at = input_waits.now(
                    [
                        *map(batches_ahead.batch_of, taken),
                        batches_ahead.batch_of(now),
                    ]
                )
                waits = list(
                    added._replace(begun_at=begun_at, arrived_at=arrived_at)
                )
            return counts, outputs, now, waits

        counts, outputs, _, last = tf.while_loop(
            lambda counts, _outputs, now, _waits: goes_on(counts[-1], now),
            body,
            loop_vars=(
                [tf.constant(0) for _ in range(1 + is_numbered)],
                tf.nest.map_structure(_zeros, specs),
                first,
                list(waits or ()),
            ),
            shape_invariants=(
                [tf.TensorShape([]) for _ in range(1 + is_numbered)],
                tf.nest.map_structure(lambda spec: spec.shape, specs),
                batches_ahead.invariants(first),
                [tf.TensorShape([]) for _ in waits or ()],
            ),
            # Steps follow one another: each reads the writes of the last.
            parallel_iterations=1,
        )
        with tf.device(graph_checks.CPU):
            progress = tf.stack(
                [
                    tf.cast(counts[0], tf.float64),
                    waited(Waits(*last), input_waits.now(counts))
                    if waits and waited is not None
                    else tf.constant(math.nan, tf.float64),
                ]
            )
        return StepsOutput(
            progress,
            outputs,
            self._counted_sums.pack(),
            counts[1] if is_numbered else None,
        )


def _first(
    is_needed: tf.Tensor, iterator: Any, copies: DeviceCopies
) -> tuple[BatchAhead, Waits]:
    """Takes the first batch of a loop; returns it, and the waits so far."""
    begun_at = input_waits.now([])
    with tf.control_dependencies([begun_at]):
        first = batches_ahead.of_iterator(is_needed, iterator, copies)
    arrived_at = input_waits.now(first.batch)
    return first, input_waits.after_first(begun_at, arrived_at)


def _spec(output: Any) -> tf.TensorSpec:
    return tf.TensorSpec(output.shape, output.dtype)


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [0 if size is None else size for size in spec.shape.as_list()]
    return tf.zeros(shape, spec.dtype)

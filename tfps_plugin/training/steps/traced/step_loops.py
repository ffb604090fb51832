"""Loops of a worker over the batches of one call."""

import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.training.local.local_rounds import LocalRounds
from tfps_plugin.training.local.local_rounds import RoundOutput
from tfps_plugin.training.local.local_rounds import Source
from tfps_plugin.training.steps.metrics.counted_sums import CountedSums
from tfps_plugin.training.steps.traced import input_waits
from tfps_plugin.training.steps.traced.input_waits import Waits
from tfps_plugin.variables.chief import chief_reads
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
            self.progress.numpy(), self.progress.shape
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
    ) -> None:
        """Takes the step.

        Args:
            one_step: A `tf.function` of one batch.
            counted_sums: The metric states that each call returns.
            local_rounds: Rounds of local steps, if loops are to make these.
        """
        self._one_step = one_step
        self._counted_sums = counted_sums
        self._local_rounds = local_rounds
        # By the type of a batch; only what makes local steps.
        self._rounds: dict[str, Callable[..., RoundOutput]] = {}

    def prepare_iterator(self, element_spec: Any) -> None:
        """Traces what `steps_over_iterator` needs as functions of their own.

        Args:
            element_spec: Type of a batch.
        """
        if self._local_rounds is not None:
            self._rounds[repr(element_spec)] = self._local_rounds.traced(
                element_spec, _iterator_source(element_spec)
            )

    def prepare_group(self, codec: BatchCodec) -> None:
        """Traces what `steps_over_group` needs as functions of their own.

        Args:
            codec: Codec of the batches.
        """
        if self._local_rounds is not None:
            self._rounds[repr(codec.element_spec)] = self._local_rounds.traced(
                codec.decoded_spec, _group_source(codec)
            )

    def steps_over_iterator(
        self, iterator: Any, num_steps: tf.Tensor
    ) -> StepsOutput:
        """Runs `num_steps` steps, or as many as there are batches for.

        If others make steps meanwhile, it leaves these out.
        """

        local_round = self._rounds.get(repr(iterator.element_spec))
        waits = None
        if local_round is None:
            begun_at = input_waits.now([])
            with tf.control_dependencies([begun_at]):
                first = _next_if(num_steps > 0, iterator)
            waits = input_waits.after_first(begun_at, input_waits.now(first))
        else:
            first = _next_if(num_steps > 0, iterator)
        # The next batch is a loop variable, so that no step begins without
        # one, and no batch is taken that this call does not need.
        return self._loop(
            iterator.element_spec,
            lambda over, batch: (over < num_steps) & batch.has_value(),
            lambda done, batch: [batch.get_value()],
            first=first,
            following=lambda over: _next_if(over < num_steps, iterator),
            local_round=local_round,
            of_round=lambda done, batch: (iterator, batch, num_steps - done),
            waits=waits,
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
            following=lambda done: tf.constant(0),
            waits=input_waits.none(),
            wait=wait,
            waited=lambda waits, ended_at: wait(waits, ended_at).seconds,
        )

    def steps_over_group(
        self, codec: BatchCodec, group_KC: tf.Tensor
    ) -> StepsOutput:
        """Runs a step on each batch of a group."""
        num_batches = tf.shape(group_KC)[0]

        def batch(number: tf.Tensor, _: Any) -> list[Any]:
            with tf.device(graph_checks.CPU):
                return [codec.decode(group_KC[number])]

        return self._loop(
            codec.decoded_spec,
            lambda over, _: over < num_batches,
            batch,
            first=tf.constant(0),
            following=lambda done: tf.constant(0),
            local_round=self._rounds.get(repr(codec.element_spec)),
            of_round=lambda done, _: (group_KC, done, num_batches - done),
        )

    def _loop(
        self,
        element_spec: Any,
        goes_on: Callable[[tf.Tensor, Any], tf.Tensor],
        batches: Callable[[tf.Tensor, Any], Sequence[Any]],
        *,
        first: Any,
        following: Callable[[tf.Tensor], Any],
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
            following: Returns the value for the batches after so many steps
                that are over.
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
            return counts, outputs, following(counts[-1]), taken

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
                arrived_at = input_waits.now([taken, now])
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
                None,
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


def _next_if(is_needed: tf.Tensor, iterator: Any) -> Any:
    """Returns the next batch of an iterator, an optional one.

    Args:
        is_needed: Whether to take it; a boolean scalar.
        iterator: The iterator.
    """

    def next_batch() -> Any:
        with tf.device(graph_checks.CPU):
            return iterator.get_next_as_optional()

    def none() -> Any:
        with tf.device(graph_checks.CPU):
            return tf.experimental.Optional.empty(iterator.element_spec)

    return tf.cond(is_needed, next_batch, none)


def _iterator_source(element_spec: Any) -> Source:
    """Returns the batches of a round: an iterator, and its next batch."""
    return Source(
        (tf.data.IteratorSpec(element_spec), tf.OptionalSpec(element_spec)),
        first=lambda iterator, batch: batch,
        goes_on=lambda iterator, first, done, batch: batch.has_value(),
        batch=lambda iterator, first, done, batch: batch.get_value(),
        following=lambda iterator, first, done, left: _next_if(
            done < left, iterator
        ),
    )


def _group_source(codec: BatchCodec) -> Source:
    """Returns the batches of a round: a group, and the number of the first."""

    def batch(
        group_KC: tf.Tensor, first: tf.Tensor, done: tf.Tensor, _: Any
    ) -> Any:
        with tf.device(graph_checks.CPU):
            return codec.decode(group_KC[first + done])

    return Source(
        (
            tf.TensorSpec([None, codec.num_parts], tf.string),
            tf.TensorSpec([], tf.int32),
        ),
        first=lambda group_KC, first: tf.constant(0),
        goes_on=lambda group_KC, first, done, _: tf.constant(True),
        batch=batch,
        following=lambda group_KC, first, done, left: tf.constant(0),
    )


def _spec(output: Any) -> tf.TensorSpec:
    return tf.TensorSpec(output.shape, output.dtype)


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [0 if size is None else size for size in spec.shape.as_list()]
    return tf.zeros(shape, spec.dtype)

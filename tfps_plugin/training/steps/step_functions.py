"""Many steps as one function of a worker."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.training.steps.calls_in_flight import CallsInFlight
from tfps_plugin.training.steps.counted_sums import CountedSums
from tfps_plugin.training.steps.lane_sums import LaneSums
from tfps_plugin.training.steps.packing import Pace
from tfps_plugin.variables import graph_checks
from tfps_plugin.variables import steps_in_flight
from tfps_plugin.variables.worker_resident import WorkerResident


class StepsOutput(NamedTuple):
    """What a call of many steps returns.

    Attributes:
        num_steps: How many ran; fewer than asked for where the input ended.
        outputs: What the last one returned; zeros if none ran.
        counted: What the call has counted, packed; see `CountedSums`.
    """

    num_steps: tf.Tensor
    outputs: Any
    counted: list[tf.Tensor]


class StepFunctions:
    """A model's step, packed into loops over the batches of one worker.

    Attributes:
        pace: How many steps to pack, by how long they take.
        calls_in_flight: How many calls a worker runs at a time, by how fast
            they then are.

    Threading: used by the thread that runs `fit` alone; the functions that it
    gives may be called from any.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable[[Any], Any],
        coordinator: ClusterCoordinator,
        counted_sums: CountedSums | None = None,
    ) -> None:
        """Prepares; traces nothing yet.

        Args:
            model: The model; its strategy runs the step.
            step: `train_step` or `test_step`, of one batch.
            coordinator: In whose scope functions are traced.
            counted_sums: What each call begins at zero and returns.
        """
        strategy = model.distribute_strategy
        step = keras_compat.without_optionals(model, step)
        self._model = model
        self._coordinator = coordinator
        self._counted_sums = counted_sums or CountedSums([])
        # What calls return is not to be counted a second time.
        self._lane_sums = LaneSums(model) if counted_sums is None else None
        self.pace = Pace(coordinator.num_lanes, model.name)
        self.calls_in_flight = CallsInFlight(
            coordinator.num_workers,
            coordinator.in_flight_at_first,
            coordinator.most_in_flight,
            coordinator.least_in_flight,
            model.name,
        )
        # Each lane's own: another one's may be on its way still.
        self._numbers: WorkerResident[dict[int, tf.Tensor]] = WorkerResident(
            lambda context: {}, per_lane=True
        )
        self._on_iterator: dict[str, Callable[..., StepsOutput]] = {}
        self._on_group: dict[str, Callable[..., StepsOutput]] = {}

        @tf.autograph.experimental.do_not_convert
        def one_step(data: Any) -> Any:
            # Parts of a step need no data, such as counting it: where the
            # input has run dry, they must not happen either.
            with (
                steps_in_flight.tracing(),
                tf.control_dependencies(
                    [
                        part
                        for part in tf.nest.flatten(
                            data, expand_composites=True
                        )
                        if part is not None
                    ]
                ),
            ):
                outputs = strategy.run(step, args=(data,))
            return tf.nest.map_structure(tf.convert_to_tensor, outputs)

        self._one_step = tf.function(one_step)

    def on_iterator(self, element_spec: Any) -> Callable[..., StepsOutput]:
        """A function of an iterator of the worker and a number of steps.

        It runs that many steps, or as many as the iterator has batches for.

        Args:
            element_spec: What one batch looks like.
        """
        key = repr(element_spec)
        if key not in self._on_iterator:
            self._on_iterator[key] = self._traced(
                self._many_from_iterator,
                tf.data.IteratorSpec(element_spec),
                tf.TensorSpec([], tf.int32),
            )
        return self._on_iterator[key]

    def on_group(self, codec: BatchCodec) -> Callable[..., StepsOutput]:
        """A function of a group of batches as strings, of shape `(K, C)`.

        Args:
            codec: Says what the batches are.
        """
        key = repr(codec.element_spec)
        if key not in self._on_group:
            self._on_group[key] = self._traced(
                lambda group_KC: self._many_from_group(codec, group_KC),
                tf.TensorSpec([None, codec.num_parts], tf.string),
            )
        return self._on_group[key]

    def number(self, value: int) -> tf.Tensor:
        """A number for a function, on the worker that the caller drives."""
        numbers = self._numbers.get()
        if value not in numbers:
            # tf.constant would have this whole program wait for the worker; an
            # operation lets other threads run.
            with tf.device(None), tf.device(graph_checks.CPU):
                local = tf.constant(np.asarray(value, np.int32))
            numbers[value] = tf.identity(local)
        return numbers[value]

    def commit(self, counted: list[np.ndarray]) -> None:
        """On the chief: counts what calls have counted, when none runs.

        Args:
            counted: Fetched, and added up; empty: nothing.
        """
        if counted:
            self._counted_sums.commit(counted)

    def collect(self) -> None:
        """On the chief: brings what lanes have counted, when none runs."""
        if self._lane_sums is not None:
            self._lane_sums.collect()

    def _traced(
        self, function: Callable[..., Any], *specs: Any
    ) -> Callable[..., Any]:
        # On the caller's thread and under no device: one trace for all.
        with (
            tensorflow_execution.unwrapped_errors(),
            self._coordinator.tracing_scope(),
            tf.device(None),
        ):
            concrete = tf.function(
                tf.autograph.experimental.do_not_convert(function)
            ).get_concrete_function(*specs)
        return self._coordinator.prepare(concrete, self._model)

    def _many_from_iterator(
        self, iterator: Any, num_steps: tf.Tensor
    ) -> StepsOutput:
        # The next batch is asked for in the loop's variables, so that no step
        # begins without one, and none is taken that this call does not need.
        def next_batch() -> Any:
            with tf.device(graph_checks.CPU):
                return iterator.get_next_as_optional()

        def none() -> Any:
            with tf.device(graph_checks.CPU):
                return tf.experimental.Optional.empty(iterator.element_spec)

        return self._loop(
            iterator.element_spec,
            lambda done, batch: (done < num_steps) & batch.has_value(),
            lambda done, batch: batch.get_value(),
            first=tf.cond(num_steps > 0, next_batch, none),
            following=lambda done: tf.cond(done < num_steps, next_batch, none),
        )

    def _many_from_group(
        self, codec: BatchCodec, group_KC: tf.Tensor
    ) -> StepsOutput:
        num_batches = tf.shape(group_KC)[0]

        def batch(number: tf.Tensor, _: Any) -> Any:
            with tf.device(graph_checks.CPU):
                return codec.decode(group_KC[number])

        return self._loop(
            codec.decoded_spec,
            lambda done, _: done < num_batches,
            batch,
            first=tf.constant(0),
            following=lambda done: tf.constant(0),
        )

    def _loop(
        self,
        element_spec: Any,
        goes_on: Callable[[tf.Tensor, Any], tf.Tensor],
        batch: Callable[[tf.Tensor, Any], Any],
        *,
        first: Any,
        following: Callable[[tf.Tensor], Any],
    ) -> StepsOutput:
        """Runs one step after the other.

        Args:
            element_spec: What the step is given.
            goes_on: Whether there is a step, of the number of steps done and
                what `following` gave.
            batch: Its data, likewise.
            first: What stands for the first batch.
            following: What stands for the batch after so many steps.
        """
        # Tracing tells what a step returns; the loop needs to know before.
        traced = self._one_step.get_concrete_function(element_spec)
        specs = tf.nest.map_structure(_spec, traced.structured_outputs)
        self._counted_sums.zero()

        def body(done: tf.Tensor, outputs: Any, now: Any) -> Any:
            del outputs
            new_outputs = self._one_step(batch(done, now))
            return done + 1, new_outputs, following(done + 1)

        done, outputs, _ = tf.while_loop(
            lambda done, _, now: goes_on(done, now),
            body,
            loop_vars=(
                tf.constant(0),
                tf.nest.map_structure(_zeros, specs),
                first,
            ),
            shape_invariants=(
                tf.TensorShape([]),
                tf.nest.map_structure(lambda spec: spec.shape, specs),
                None,
            ),
            # Steps follow one another: the next reads what this one wrote.
            parallel_iterations=1,
        )
        return StepsOutput(done, outputs, self._counted_sums.pack())


def _spec(output: Any) -> tf.TensorSpec:
    return tf.TensorSpec(output.shape, output.dtype)


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [0 if size is None else size for size in spec.shape.as_list()]
    return tf.zeros(shape, spec.dtype)

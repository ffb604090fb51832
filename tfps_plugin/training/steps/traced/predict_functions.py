"""Predictions of many batches as one function of a worker."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.strategy.replicas.device_copies import DeviceCopies
from tfps_plugin.training.steps.metrics.step_states import StepStates
from tfps_plugin.training.steps.traced import batches_ahead
from tfps_plugin.training.steps.traced import replica_steps
from tfps_plugin.training.steps.traced.batches_ahead import GroupBatches
from tfps_plugin.variables.lookup import graph_checks


class PredictFunction(NamedTuple):
    """Predicts a group of batches.

    Attributes:
        call: A function of batches as strings, of shape `(K, C)`, that
            returns predictions as strings, one row for each batch.
        codec: Codec of the predictions of one batch.
    """

    call: Callable[[tf.Tensor], tf.Tensor]
    codec: BatchCodec


class PredictFunctions:
    """A model's `predict_step`, packed into a loop over batches.

    Attributes:
        states: The needs of the step's states.

    Threading: only the thread that runs `predict` uses it; any thread may call
    the functions that it returns.
    """

    def __init__(
        self, model: keras.Model, coordinator: ClusterCoordinator
    ) -> None:
        """Prepares; traces nothing yet.

        Args:
            model: The model; its strategy runs the step.
            coordinator: The coordinator in whose scope functions are traced.
        """
        self._model = model
        self._coordinator = coordinator
        strategy = model.distribute_strategy
        step = keras_compat.without_optionals(model, model.predict_step)
        self._step = tf.autograph.experimental.do_not_convert(
            lambda data: replica_steps.predict(strategy, step, data)
        )
        self._one_step = tf.function(self._step)
        self.states = StepStates(model)
        self._functions: dict[str, PredictFunction] = {}
        self._traced_for_layout: int = strategy.layout_version

    def on_group(self, codec: BatchCodec) -> PredictFunction:
        """Returns the function for batches of a type."""
        key = repr(codec.element_spec)
        version = self._model.distribute_strategy.layout_version
        if version != self._traced_for_layout:
            self._traced_for_layout = version
            self._functions.clear()
        if self.states.are_outdated:
            self._functions.clear()
        if key not in self._functions:
            # On the caller's thread and under no device: one trace for all.
            with self._coordinator.functions.tracing_scope():
                self._functions[key] = self._trace(codec)
            self.states.announce_order()
        return self._functions[key]

    def _traced_anew(self, codec: BatchCodec) -> Any:
        self._one_step = tf.function(self._step)
        return self._one_step.get_concrete_function(
            self._copies(codec).step_spec
        )

    def _copies(self, codec: BatchCodec) -> DeviceCopies:
        return DeviceCopies(
            codec.decoded_spec, self._model.distribute_strategy.copy_devices
        )

    def _trace(self, codec: BatchCodec) -> PredictFunction:
        if not self._model.built:
            x, _, _ = keras.utils.unpack_x_y_sample_weight(codec.decoded_spec)
            keras_compat.build_from_spec(self._model, x)
        self.states.settle(lambda: self._traced_anew(codec).graph)
        copies = self._copies(codec)
        traced = self._one_step.get_concrete_function(copies.step_spec)
        group = GroupBatches(codec, copies)
        output_codec = BatchCodec(
            tf.nest.map_structure(
                tf.type_spec_from_value, traced.structured_outputs
            )
        )

        @tf.autograph.experimental.do_not_convert
        def on_group(group_KC: tf.Tensor) -> tf.Tensor:
            num_batches = tf.shape(group_KC)[0]
            with tf.device(graph_checks.CPU):
                all_rows = tf.TensorArray(
                    tf.string,
                    size=num_batches,
                    element_shape=[output_codec.num_parts],
                )

            def body(done: tf.Tensor, now: Any, rows: tf.TensorArray) -> Any:
                outputs = self._one_step(group.take(group_KC, done, now))
                done += 1
                now = group.ahead(group_KC, done)
                with tf.device(graph_checks.CPU):
                    rows = rows.write(
                        done - 1, output_codec.encode_one(outputs)
                    )
                return done, now, rows

            first = group.ahead(group_KC, 0)
            _, _, all_rows = tf.while_loop(
                lambda done, _now, _rows: done < num_batches,
                body,
                (tf.constant(0), first, all_rows),
                shape_invariants=(
                    tf.TensorShape([]),
                    batches_ahead.invariants(first),
                    None,
                ),
                parallel_iterations=1,
            )
            with tf.device(graph_checks.CPU):
                return all_rows.stack()

        concrete = tf.function(on_group).get_concrete_function(
            tf.TensorSpec([None, codec.num_parts], tf.string)
        )
        return PredictFunction(
            self._coordinator.functions.prepare(concrete, self._model),
            output_codec,
        )

"""Steps of an optimizer that is applied outside of functions.

Run eagerly, each of some hundred operations would be a round trip to a
parameter server. Here one function does the same.
"""

import types
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras_optimizers
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.optimizers.automatic import automatic_updates
from tfps_plugin.training.optimizers.step import OptimizerStep
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.chief.chief_reads import on_the_chief
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.step_trace import StepTrace

# Types of settings that may change between two steps and are not variables.
_SETTINGS = (bool, int, float, str, types.NoneType)


class CompiledSteps:
    """Functions that apply one optimizer, traced when first needed.

    Threading: like the optimizer, which one thread applies at a time.
    """

    def __init__(self) -> None:
        """Starts without functions."""
        self._functions: dict[Any, Any] = {}

    def __reduce__(self) -> Any:
        """Gives a copy of an optimizer its own, empty object."""
        return CompiledSteps, ()

    def run(
        self,
        optimizer: Any,
        gradients: Sequence[Any],
        variables: Sequence[keras.Variable],
    ) -> None:
        """Applies the gradients of one step, on the chief.

        Args:
            optimizer: A built Keras optimizer of our strategy.
            gradients: A tensor or `tf.IndexedSlices` for every variable.
            variables: The variables that have a gradient.
        """
        kinds = [_kind(gradient) for gradient in gradients]
        key = (
            tuple(keras_optimizers.index_of(optimizer, v) for v in variables),
            tuple(kinds),
            _settings(optimizer),
            automatic_updates.version([optimizer]),
            # Variables may move to other parameter servers.
            keras_optimizers.strategy_of(optimizer).layout_version,
        )
        tensors = [_tensors(gradient) for gradient in gradients]
        function = self._functions.get(key)
        if function is None:
            shapes = [tf.TensorShape(v.shape) for v in variables]

            def apply(tensors: list[list[tf.Tensor]]) -> None:
                given = map(_gradient, kinds, tensors, shapes)
                step = OptimizerStep(optimizer, variables, StepTrace.current())
                step.run(list(given))

            with compat.clear_device():
                function = tf.function(apply).get_concrete_function(
                    tf.nest.map_structure(_spec_of_any_length, tensors)
                )
            self._functions[key] = function
        steps_in_flight.finish()
        with compat.clear_device():
            function(tensors)


def can_compile(optimizer: Any) -> bool:
    """Returns whether to compile the present call of an optimizer.

    A user's own optimizer runs as it is written: it may print, or inspect
    values.
    """
    rate = keras_optimizers.learning_rate_behind(optimizer)
    return (
        on_the_chief()
        and _is_of_keras(optimizer)
        and (isinstance(rate, keras.Variable) or _is_of_keras(rate))
    )


def _is_of_keras(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "keras"


def _kind(gradient: Any) -> str:
    """Returns what a function must know of a gradient besides its tensors."""
    if isinstance(gradient, DistinctRows):
        return f"distinct rows by {gradient.indices.dtype.name}"
    if isinstance(gradient, tf.IndexedSlices):
        return f"rows by {gradient.indices.dtype.name}"
    return "dense"


def _tensors(gradient: Any) -> list[tf.Tensor]:
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values, gradient.indices]
    return [tf.convert_to_tensor(gradient)]


def _gradient(
    kind: str, tensors: list[tf.Tensor], shape: tf.TensorShape
) -> Any:
    if kind == "dense":
        return tf.ensure_shape(tensors[0], shape)
    cls = DistinctRows if kind.startswith("distinct") else tf.IndexedSlices
    values, ids = tensors
    return cls(values, ids, tf.constant(shape.as_list(), tf.int64))


def _spec_of_any_length(tensor: tf.Tensor) -> tf.TensorSpec:
    """Returns the spec of a tensor with any number of rows."""
    return (
        tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        if (tensor.shape.rank)
        else tf.TensorSpec([], tensor.dtype)
    )


def _settings(optimizer: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, value)
        for name, value in vars(optimizer).items()
        if isinstance(value, _SETTINGS)
    )

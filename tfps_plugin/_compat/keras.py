"""Private Keras API: initializers, variables, the trainer.

Checked against Keras 3.12 to 3.15.
"""

import functools
import math
from collections.abc import Callable
from typing import Any
from typing import Literal

import keras
import tensorflow as tf

# Builds a model from the specs of its input.
from keras.src import backend

# Global state of Keras for the whole process.
from keras.src.backend.common import global_state

# Variables seen in a stateless scope must not be assigned in place.
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.stateless_scope import (
    in_stateless_scope as in_stateless_scope,
)

# Keras only asks for the shapes of a layer's outputs.
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

# Keras offers no hook for assignments and lookups of variables.
from keras.src.backend.tensorflow import core as tensorflow_core

# fit(), evaluate() and predict() look their epoch iterator and their step
# functions up here.
from keras.src.backend.tensorflow import trainer as tensorflow_trainer

# Computes the fans of a variance-scaling initializer.
from keras.src.initializers import random_initializers

# Seeds pass through these before they reach TensorFlow.
from keras.src.random.seed_generator import draw_seed

# fit() weighs the classes of a dataset with a function from here.
from keras.src.trainers.data_adapters import tf_dataset_adapter

# fit() takes any DataAdapter for input, untouched.
from keras.src.trainers.data_adapters.data_adapter import (
    DataAdapter as DataAdapter,
)
from keras.src.trainers.epoch_iterator import EpochIterator as EpochIterator

from tfps_plugin._compat.runtime import living_objects
from tfps_plugin._compat.runtime import tensorflow_devices
from tfps_plugin._compat.runtime.tensorflow_devices import NamedDevice

Variable = tensorflow_core.Variable
TensorFlowTrainer = tensorflow_trainer.TensorFlowTrainer

TFEpochIterator = tensorflow_trainer.TFEpochIterator

# Key of Keras's global seed generator; early releases have no constant for it.
_GLOBAL_SEED_GENERATOR = "global_seed_generator"

_NOT_NOTED: Any = object()

Distribution = Literal["normal", "truncated_normal", "uniform"]


def initializer_behind(
    initial_value: Any,
) -> tuple[Any, tuple[int, ...]] | None:
    """Returns initializer and full shape behind an initial-value callable.

    A `keras.Variable` passes `lambda: initializer(self._shape, ...)` and no
    shape to `tf.Variable`. Nothing else describes the value without creating
    it.

    Returns:
        `(initializer, shape)`; None if the callable is not Keras's.
    """
    free = _free_variables(initial_value)
    variable = free.get("self")
    initializer = free.get("initializer")
    if not isinstance(variable, keras.Variable) or initializer is None:
        return None
    shape = getattr(variable, "_shape", None)
    if shape is None or any(size is None for size in shape):
        return None
    return initializer, tuple(int(size) for size in shape)


def asks_for_shapes() -> bool:
    """Returns whether Keras calls a layer for the shapes of its outputs alone.

    False in a `tf.function` of the program, whose trace may be kept.
    """
    graph = tf.compat.v1.get_default_graph()
    name: str = getattr(graph, "name", "")
    return in_symbolic_scope() and name.startswith("scratch_graph")


def path_behind(initial_value: Any) -> str | None:
    """Returns the path of a `keras.Variable` from its initial-value callable.

    Keras passes only the last part of the path, such as `embeddings`, to
    `tf.Variable`. None if the callable is not Keras's.
    """
    variable = _free_variables(initial_value).get("self")
    return variable.path if isinstance(variable, keras.Variable) else None


def registered_with_device(
    original: Callable[[Any], None],
) -> Callable[[Any], None]:
    """Returns a `register_uninitialized_variable` that notes the device.

    Keras calls it while it builds a model symbolically, and makes the variable
    later, outside of every `tf.device` of the program.
    """

    @functools.wraps(original)
    def register_uninitialized_variable(variable: Any) -> None:
        with tf.init_scope():
            variable._tfps_device = tensorflow_devices.named_device()
        original(variable)

    return register_uninitialized_variable


def device_behind(initial_value: Any) -> NamedDevice | None:
    """Returns the device that the program names for a new variable.

    Args:
        initial_value: The value or callable that `tf.Variable` is given.

    Returns:
        The present device, or that of the `keras.Variable` whose making was
        deferred; None: no device.
    """
    variable = _free_variables(initial_value).get("self")
    if isinstance(variable, keras.Variable):
        noted = vars(variable).pop("_tfps_device", _NOT_NOTED)
        if noted is not _NOT_NOTED:
            found: NamedDevice | None = noted
            return found
    return tensorflow_devices.named_device()


def _free_variables(function: Any) -> dict[str, Any]:
    """Returns a function's variables of enclosing functions, by name."""
    code = getattr(function, "__code__", None)
    cells = getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    return dict(
        zip(code.co_freevars, (c.cell_contents for c in cells), strict=True)
    )


def is_elementwise_constant(initializer: Any) -> bool:
    """Returns whether the initializer gives every element the same number."""
    if isinstance(
        initializer, keras.initializers.Zeros | keras.initializers.Ones
    ):
        return True
    return isinstance(initializer, keras.initializers.Constant) and isinstance(
        initializer.value, int | float | bool
    )


def is_zeros(initializer: Any) -> bool:
    """Returns whether the initializer gives every element zero."""
    return isinstance(initializer, keras.initializers.Zeros) or (
        isinstance(initializer, keras.initializers.Constant)
        and isinstance(initializer.value, int | float)
        and initializer.value == 0
    )


def random_draw(
    initializer: Any, shape: tuple[int, ...]
) -> tuple[Distribution, tuple[float, float], tuple[int, int]] | None:
    """Returns the distribution of a random initializer for a `shape`.

    Returns:
        The distribution, its parameters (mean and standard deviation, or
        lower and upper end), and TensorFlow's two seed numbers. None for an
        initializer that does more than draw, such as an orthogonal one, and
        for subclasses, which may do anything.
    """
    drawn = _distribution(initializer, shape)
    if drawn is None:
        return None
    seed = draw_seed(initializer.seed)
    # As keras.random does: TensorFlow's operations take int32 seeds.
    limit = tf.int32.max - 1
    numbers = [int(n) for n in seed.numpy()]
    if seed.dtype != tf.int32:
        numbers = [n % limit for n in numbers]
    return *drawn, (numbers[0], numbers[1])


def _distribution(
    initializer: Any, shape: tuple[int, ...]
) -> tuple[Distribution, tuple[float, float]] | None:
    kind = type(initializer)
    if not kind.__module__.startswith("keras."):
        return None
    if kind is keras.initializers.RandomNormal:
        return "normal", (initializer.mean, initializer.stddev)
    if kind is keras.initializers.TruncatedNormal:
        return "truncated_normal", (initializer.mean, initializer.stddev)
    if kind is keras.initializers.RandomUniform:
        return "uniform", (initializer.minval, initializer.maxval)
    if isinstance(initializer, keras.initializers.VarianceScaling):
        return _variance_scaling(initializer, shape)
    return None


def _variance_scaling(
    initializer: Any, shape: tuple[int, ...]
) -> tuple[Distribution, tuple[float, float]]:
    axes = {
        name: getattr(initializer, name)
        for name in ("input_axes", "output_axes")
        if getattr(initializer, name, None) is not None
    }
    fan_in, fan_out = random_initializers.compute_fans(shape, **axes)
    fan = {
        "fan_in": fan_in,
        "fan_out": fan_out,
        "fan_avg": (fan_in + fan_out) / 2.0,
    }[initializer.mode]
    variance = initializer.scale / max(1.0, fan)
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return "uniform", (-limit, limit)
    if initializer.distribution == "truncated_normal":
        # Standard deviation of a normal truncated at two deviations.
        return "truncated_normal", (
            0.0,
            math.sqrt(variance) / 0.87962566103423978,
        )
    return "normal", (0.0, math.sqrt(variance))


def without_optionals(model: Any, step: Any) -> Any:
    """Returns a step that receives None for missing parts of a batch.

    Keras wraps the steps of its own loop in the same way.
    """
    return model._autoconvert_optionals(step)


def weighing_classes(class_weight: dict[int, float]) -> Any:
    """Returns the function by which Keras weighs the classes of a dataset.

    Args:
        class_weight: As in `fit`.
    """
    weigh = tf_dataset_adapter.make_class_weight_map_fn(class_weight)
    return lambda dataset: dataset.map(weigh)


def concatenated(outputs: list[Any]) -> Any:
    """Concatenates the predictions of several batches, as Keras does.

    Args:
        outputs: Nested structures of tensors, dense, ragged or sparse.
    """
    if len(outputs) == 1:
        return outputs[0]
    return keras.tree.map_structure(
        lambda *parts: tensorflow_trainer.concat(list(parts)), *outputs
    )


def build_from_spec(model: Any, x_spec: Any) -> None:
    """Builds a model's layers for input of a type, without running them.

    Args:
        model: The model.
        x_spec: A nested structure of specs with shapes and dtypes.
    """
    x = keras.tree.map_structure(
        lambda spec: (
            None
            if spec is None
            else keras.KerasTensor(
                spec.shape, keras.backend.standardize_dtype(spec.dtype)
            )
        ),
        x_spec,
    )
    backend.compute_output_spec(model, x, training=False)


def has_own_step(model: Any, step: str) -> bool:
    """Returns whether a model has its own `train_step` or `test_step`."""
    own = getattr(getattr(model, step), "__func__", None)
    return own is not getattr(TensorFlowTrainer, step)


def has_own_call(model: Any) -> bool:
    """Returns whether a model can be called: `keras.Model` itself refuses."""
    return type(model).call is not keras.Model.call


def compiled_parts_are_built(model: Any) -> bool:
    """Returns whether the losses and metrics of `compile` are built."""
    parts = (model._compile_metrics, model._compile_loss)
    return all(part is None or part.built for part in parts)


def layers_within(model: Any) -> list[Any]:
    """Returns a model and all its layers, each after one that contains it.

    Keras lists only the direct layers of a model.
    """
    return list(model._flatten_layers())


def set_value(variable: Any, value: tf.Variable) -> None:
    """Makes a `keras.Variable` use another variable of TensorFlow.

    Keras offers no way to move an existing variable.

    Args:
        variable: The `keras.Variable`.
        value: The other variable, with its shape and dtype.
    """
    # As if it were created with it: its class follows the value.
    variable._initialize(value)


def value_of(variable: Any, default: Any = None) -> Any:
    """Returns the variable of TensorFlow behind a `keras.Variable`.

    Its public `value` differs in a stateless scope, and if mixed precision
    casts.

    Args:
        variable: The `keras.Variable`, or anything else.
        default: Returned for anything else.
    """
    return getattr(variable, "_value", default)


def cast_of(variable: Any) -> Any:
    """Returns the function that casts what is read from a `keras.Variable`.

    With mixed precision, a layer sees its variables in another dtype.
    """
    return variable._maybe_autocast


def strategy_of(model: Any) -> Any:
    """Returns the strategy that a model was created under, or None.

    In the latter case the public `distribute_strategy` is TensorFlow's default.
    """
    return getattr(model, "_distribute_strategy", None)


def set_initial_epoch(model: Any, epoch: int) -> None:
    """Makes `fit` begin with another epoch; call it before `fit` begins.

    Keras's own `BackupAndRestore` does it in the same way.
    """
    model._initial_epoch = epoch


def converted_for(variable: Any, value: Any, dtype: Any = None) -> tf.Tensor:
    """Returns a value as a tensor that a `keras.Variable` can be assigned.

    Args:
        variable: The `keras.Variable`.
        value: Any value that it accepts.
        dtype: Dtype of the tensor; None: that of the variable, without
            mixed precision.
    """
    return variable._convert_to_tensor(
        value, dtype=variable._dtype if dtype is None else dtype
    )


def has_stateless_value(variable: Any) -> bool:
    """Returns whether a stateless scope has its own value for a variable."""
    return (
        in_stateless_scope()
        and get_stateless_scope().get_current_value(variable) is not None
    )


def is_seed_state(initial_value: Any, name: str | None) -> bool:
    """Returns whether a variable being created is a `SeedGenerator`'s state."""
    return (
        name is not None
        and name.rsplit("/", 1)[-1].startswith("seed_generator_state")
        and callable(initial_value)
    )


def global_seed_state() -> tf.Variable | None:
    """Returns the state of Keras's global seed generator, or None."""
    generator = global_state.get_global_attribute(_GLOBAL_SEED_GENERATOR)
    return None if generator is None else generator.state.value


def make_global_seed_generator(state: tf.Tensor) -> None:
    """Recreates the global seed generator in the present scope.

    Keras would create it where it first draws a number without a seed.
    """
    generator = keras.random.SeedGenerator(seed=int(state[0]))
    generator.state.assign(state)
    global_state.set_global_attribute(_GLOBAL_SEED_GENERATOR, generator)


def scopes_of_thread() -> dict[str, Any]:
    """Returns the scopes that Keras keeps for this thread, to be entered.

    Such as the dtype policy, the scopes of names and the present layer.
    """
    return {
        name: each.copy() if isinstance(each, dict | list) else each
        for name, each in vars(global_state.GLOBAL_STATE_TRACKER).items()
    }


def enter_scopes(scopes: dict[str, Any]) -> None:
    """Makes the scopes of another thread those of this one, until it ends."""
    vars(global_state.GLOBAL_STATE_TRACKER).update(scopes)


def living_layers() -> list[Any]:
    """Returns all layers, and models, of this process."""
    return living_objects.instances_of(keras.layers.Layer)


def next_unordered_seed(state: tf.Tensor) -> tf.Tensor:
    """Returns the state that `SeedGenerator.next(ordered=False)` assigns."""
    return (state + 1) * 5387 % 933199

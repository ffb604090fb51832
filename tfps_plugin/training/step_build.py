"""Builds a model by tracing its own step, as in a single process.

Under a strategy Keras builds a model by calling it on the inputs of the batch.
A model with its own steps may have no `call`, as the GANs of keras.io, or take
the batch apart in another way. In a single process its layers are made when its
step is traced.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.variables.step_trace import StepTrace


def is_by_step(model: keras.Model, step: str) -> bool:
    """Returns whether a model is built by its step, and not by a call.

    Args:
        model: The model.
        step: `train_step` or `test_step`.
    """
    return keras_compat.has_own_step(
        model, step
    ) or not keras_compat.has_own_call(model)


def has_own_way(model: keras.Model) -> bool:
    """Returns whether any step of a model is not built by a call."""
    return any(is_by_step(model, step) for step in ("train_step", "test_step"))


def is_complete(model: keras.Model) -> bool:
    """Returns whether the steps of the model have nothing left to make.

    The `built` of a model without a `call` is ignored: it is never set.
    """
    layers = [
        layer
        for layer in keras_compat.layers_within(model)
        if layer is not model or keras_compat.has_own_call(model)
    ]
    return (
        all(layer.built for layer in layers)
        and keras_compat.compiled_parts_are_built(model)
        and all(optimizer.built for optimizer in optimizers_of(model))
    )


def optimizers_of(model: keras.Model) -> list[Any]:
    """Returns the optimizer of `compile`, if any, and those of attributes.

    Includes those in attributes that are lists, tuples or dictionaries.
    """
    compiled = getattr(model, "optimizer", None)
    found = {} if compiled is None else {id(compiled): compiled}
    for _, value in sorted(vars(model).items()):
        for each in _within(value):
            if isinstance(each, keras.optimizers.Optimizer):
                found.setdefault(id(each), each)
    return list(found.values())


def _within(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]


def build(
    model: keras.Model,
    step: str,
    batch_spec: Any,
    coordinator: ClusterCoordinator,
) -> None:
    """Traces a step of the model once, and discards the trace.

    Args:
        model: A model whose step may make variables.
        step: `train_step` or `test_step`.
        batch_spec: A nested structure of `tf.TypeSpec`s: one batch.
        coordinator: The coordinator in whose scope steps are traced.

    Raises:
        BaseException: The error that the step raises.
    """
    if not keras_compat.has_own_step(model, step):
        # Keras's own step explains best, when traced, that `call` is missing.
        return
    run = keras_compat.without_optionals(model, getattr(model, step))
    strategy = coordinator.strategy

    @tf.autograph.experimental.do_not_convert
    def one_step(data: Any) -> Any:
        trace = StepTrace.current()
        trace.chief_waits = True
        trace.is_discarded = True
        return strategy.run(run, args=(data,))

    with coordinator.functions.tracing_scope():
        tf.function(one_step).get_concrete_function(batch_spec)

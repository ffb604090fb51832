"""Tests which of Keras's layers have states that need steps in order."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.states import ps_rules
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.updates.update_lock import UpdateLock

Make = Callable[[], Any]

_SEQUENCE = (4, 3, 2)


def _create(next_creator: Any, **kwargs: Any) -> RemoteVariable:
    """Makes a variable as a strategy does, on this process's own device."""
    value = kwargs["initial_value"]
    variable = testing.remote_variable(
        value() if callable(value) else value,
        trainable=bool(kwargs.get("trainable", True)),
    )
    variable.update_lock = UpdateLock(testing.LOCAL_DEVICE, "keras_layers")
    variable.path = keras_compat.path_behind(value) or kwargs["name"]
    return variable


def _found(make: Make, shape: tuple[int, ...]) -> set[str]:
    """Returns the names of such states in a training step."""
    with tf.variable_creator_scope(_create):
        layer = make()
        layer.build(shape)

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(x, training=True) ** 2)
        weights = layer.trainable_weights
        gradients = tape.gradient(loss, [w.value for w in weights])
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    concrete = step.get_concrete_function(tf.TensorSpec(shape, tf.float32))
    flow = Flow(concrete.graph)
    found = ps_rules.of_one_step(flow, flow.variables, ())
    return {variable.path.rpartition("/")[2] for variable in found}


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.BatchNormalization(),
        lambda: keras.layers.BatchNormalization(momentum=0.5, axis=1),
        lambda: keras.layers.Dense(3),
        lambda: keras.layers.LSTM(3),
        lambda: keras.layers.Bidirectional(keras.layers.GRU(3)),
        lambda: keras.layers.LayerNormalization(),
        lambda: keras.Sequential(
            [
                keras.layers.BatchNormalization(),
                keras.layers.Dense(3),
                keras.layers.BatchNormalization(),
            ]
        ),
    ],
)
def test_steps_with_these_may_overlap(make: Make) -> None:
    assert _found(make, _SEQUENCE) == set()


@pytest.mark.parametrize(
    ("make", "states"),
    [
        (lambda: keras.layers.LSTM(3, stateful=True), {"rnn_state"}),
        (lambda: keras.layers.GRU(3, stateful=True), {"rnn_state"}),
        (lambda: keras.layers.SimpleRNN(3, stateful=True), {"rnn_state"}),
        (
            lambda: keras.layers.Bidirectional(
                keras.layers.LSTM(3, stateful=True)
            ),
            {"rnn_state"},
        ),
        (
            lambda: keras.layers.RNN(
                [keras.layers.GRUCell(3), keras.layers.LSTMCell(2)],
                stateful=True,
            ),
            {"rnn_state"},
        ),
        (
            lambda: keras.layers.SpectralNormalization(keras.layers.Dense(3)),
            {"vector_u", "kernel"},
        ),
    ],
)
def test_steps_with_these_follow_one_another(
    make: Make, states: set[str]
) -> None:
    assert _found(make, _SEQUENCE) == states


def test_renormalization() -> None:
    try:
        keras.layers.BatchNormalization(renorm=True)
    except (TypeError, ValueError):
        pytest.skip("Keras 3.14 and older have none.")
    found = _found(
        lambda: keras.layers.BatchNormalization(renorm=True), _SEQUENCE
    )
    assert found == {"moving_variance"}

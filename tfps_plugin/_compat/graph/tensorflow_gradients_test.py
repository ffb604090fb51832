"""Tests of gradients on the devices of the forward pass."""

from collections.abc import Callable

import pytest
import tensorflow as tf

from tfps_plugin._compat import patch_table
from tfps_plugin._compat import patches
from tfps_plugin._compat.graph import tensorflow_gradients

_WORKER = "/job:worker/task:1"
_PS = "/job:ps/task:0"


@pytest.fixture(autouse=True)
def patched() -> None:
    """Applies the patches; they stay, as other tests of this process need."""
    patches.apply(patch_table.VARIABLES)


def _backward(step: Callable[[tf.Tensor], tf.Tensor]) -> dict[str, str]:
    """Returns the devices of operations that a gradient adds, by type."""

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = step(x)
        num_forward.append(len(y.graph.get_operations()))
        return tape.gradient(y, x)

    num_forward: list[int] = []
    with tf.device(None):
        graph = function.get_concrete_function(tf.TensorSpec([2, 2])).graph
    return {
        each.type: each.device
        for each in graph.get_operations()[num_forward[0] :]
        if each.type not in ("Const", "Identity")
    }


def test_a_gradient_is_computed_on_the_worker_of_its_operation() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device(_WORKER):
            x = tf.tanh(x)
        return tf.sigmoid(x)

    devices = _backward(step)
    assert devices["TanhGrad"] == _WORKER
    assert devices["SigmoidGrad"] == ""


def test_a_gradient_of_the_programs_own_is_too() -> None:
    @tf.custom_gradient
    def own(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        return tf.square(x), lambda upstream: tf.nn.relu6(upstream * x)

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device(_WORKER):
            return own(x)

    assert _backward(step)["Relu6"] == _WORKER


def test_gradients_go_to_the_caller_from_a_ps_unless_asked_for() -> None:
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device(_PS):
            return tf.tanh(x)

    def step_there(x: tf.Tensor) -> tf.Tensor:
        with tensorflow_gradients.backward_on_same_device():
            return step(x)

    assert _backward(step)["TanhGrad"] == ""
    assert _backward(step_there)["TanhGrad"] == _PS


def test_operations_outside_of_functions_are_left_alone() -> None:
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.square(x) + tf.nn.silu(x)
    assert tape.gradient(y, x).shape == [2]

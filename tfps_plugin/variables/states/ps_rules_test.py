"""Tests which states on parameter servers need steps in order."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.states import ps_rules
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.updates.update_lock import UpdateLock

_X = tf.TensorSpec([2, 2], tf.float32)
Step = Callable[["_Layer", Any], Any]


class _Layer:
    """Variables of one layer, and a weight."""

    def __init__(self) -> None:
        self.state = self._make("layer/state", trainable=False)
        self.other = self._make("layer/other", trainable=False)
        self.far = self._make("another/state", trainable=False)
        self.weight = self._make("layer/weight", trainable=True)
        self.all = [self.state, self.other, self.far, self.weight]

    def _make(self, path: str, *, trainable: bool) -> RemoteVariable:
        variable = testing.remote_variable(tf.ones([2, 2]), trainable=trainable)
        variable.update_lock = UpdateLock(testing.LOCAL_DEVICE, "ps_rules")
        variable.path = path
        return variable


def _found(step: Step, *, optimized: tuple[str, ...] = ()) -> list[str]:
    layer = _Layer()
    concrete = tf.function(
        lambda x: step(layer, x), autograph=False
    ).get_concrete_function(_X)
    ids = {id(v) for v in layer.all if v.path in optimized}
    found = ps_rules.of_one_step(Flow(concrete.graph), layer.all, ids)
    return [variable.path for variable in found]


def _descend(layer: _Layer, x: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(x, layer.weight) * layer.far)
    gradient = tape.gradient(loss, layer.weight)
    layer.weight.assign(layer.weight - 0.1 * gradient)


def _average_weights(layer: _Layer, x: Any) -> Any:
    _descend(layer, x)
    layer.far.assign(0.9 * layer.far + 0.1 * layer.weight)
    layer.state.assign(layer.weight)
    return tf.matmul(x, layer.state)


def _assign_doubled(layer: _Layer, x: Any) -> None:
    layer.state.assign(2.0 * x)


def _in_branch(layer: _Layer, x: Any) -> None:
    def add() -> Any:
        layer.state.assign_add(x)
        return 0

    tf.cond(x[0, 0] > 0.0, add, lambda: 0)


@pytest.mark.parametrize(
    "step",
    [
        lambda layer, x: layer.state.assign_add(x),
        lambda layer, x: layer.state.assign(layer.state * 0.9 + x * 0.1),
        lambda layer, x: layer.state.assign_add(0.1 * (x - layer.state)),
        lambda layer, x: layer.state.assign(tf.maximum(layer.state, x)),
        _in_branch,
        # Statistics of inputs that a previous layer has normalized.
        lambda layer, x: (
            layer.far.assign(layer.far * 0.9 + x * 0.1),
            layer.state.assign(layer.state * 0.9 + x * layer.far * 0.1),
        ),
        # A value of the last batch, for others to look at.
        _assign_doubled,
        # An average, and a copy, of weights.
        _average_weights,
        _descend,
        lambda layer, x: layer.weight.assign_sub(x * layer.weight),
    ],
)
def test_what_several_workers_get_right(step: Step) -> None:
    assert _found(step) == []


@pytest.mark.parametrize(
    ("step", "paths"),
    [
        # The state that an RNN carries from batch to batch.
        (
            lambda layer, x: layer.state.assign(tf.matmul(x, layer.state)),
            ["layer/state"],
        ),
        (
            lambda layer, x: layer.state.assign_add(tf.matmul(x, layer.state)),
            ["layer/state"],
        ),
        # A value kept from the previous batch.
        (
            lambda layer, x: (x - layer.state, layer.state.assign(x))[0],
            ["layer/state"],
        ),
        (
            lambda layer, x: (
                layer.weight.assign_sub(x - layer.state),
                layer.state.assign(x),
            ),
            ["layer/state"],
        ),
        # A count and a mean.
        (
            lambda layer, x: (
                layer.other.assign_add(tf.ones([2, 2])),
                layer.state.assign(
                    layer.state + (x - layer.state) / layer.other
                ),
            ),
            ["layer/state"],
        ),
        # A state whose value decides whether it is assigned.
        (
            lambda layer, x: tf.cond(
                x[0, 0] > layer.state[0, 0],
                lambda: (layer.state.assign(x), 0)[1],
                lambda: 0,
            ),
            ["layer/state"],
        ),
        # A write position, which counts up.
        (
            lambda layer, x: (
                layer.other.assign_add(tf.ones([2, 2])),
                layer.state.scatter_update(
                    tf.IndexedSlices(
                        x[:1], tf.cast(layer.other[0, :1], tf.int32) % 2
                    )
                ),
            ),
            ["layer/state"],
        ),
        # An assignment that undoes the changes of others to the weight.
        (
            lambda layer, x: layer.weight.assign(
                layer.weight / tf.linalg.norm(layer.weight)
            ),
            ["layer/weight"],
        ),
    ],
)
def test_what_steps_that_overlap_would_spoil(
    step: Step, paths: list[str]
) -> None:
    assert _found(step) == paths


def test_an_optimizer_updates_under_a_lock() -> None:
    def step(layer: _Layer, x: Any) -> None:
        gradient = tf.matmul(x, layer.weight)
        lock = layer.weight.update_lock
        assert lock is not None
        with lock.holding([gradient]):
            layer.other.assign(layer.other * 0.9 + gradient)
            layer.weight.assign(layer.weight - layer.other / tf.norm(x))

    assert _found(step, optimized=("layer/other",)) == []


def test_an_optimizer_may_leave_out_a_step_and_forget_a_weight() -> None:
    """Loss scaling skips steps; Ftrl computes weights from sums in slots."""

    def step(layer: _Layer, x: Any) -> None:
        gradient = tf.matmul(x, layer.weight)

        def update() -> Any:
            lock = layer.weight.update_lock
            assert lock is not None
            with lock.holding([tf.identity(gradient)]):
                layer.other.assign(layer.other + gradient / layer.other)
                layer.weight.assign(tf.sqrt(layer.other) - gradient)
            layer.state.assign(tf.zeros([2, 2]))
            return 0

        is_finite = tf.reduce_all(tf.math.is_finite(gradient))
        tf.cond(is_finite & (layer.state[0, 0] > 1.0), update, lambda: 0)

    optimized = ("layer/other", "layer/state")
    assert _found(step, optimized=optimized) == []

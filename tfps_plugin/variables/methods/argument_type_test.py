"""Tests of variables as arguments of a tf.function."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.methods.argument_type import SameVariable

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def _variable(value: float) -> Any:
    variable = RemoteVariable(_CPU, tf.TensorShape([2]), tf.float32, "v")
    variable.assign([value, value])
    return variable


def _table(value: float) -> Any:
    return testing.sharded_variable(tf.fill([2], value), 2)


def test_a_function_changes_the_variable_that_it_is_given() -> None:
    traces = []

    @tf.function
    def step(given: dict[str, Any], x: tf.Tensor) -> tf.Tensor:
        traces.append(given)
        for variable in given["all"]:
            variable.assign_add(x * variable)
        return tf.add_n([tf.reduce_sum(v) for v in given["all"]])

    one, other = _variable(1.0), _variable(2.0)
    assert step({"all": [one, other]}, tf.constant(0.5)) == 9.0
    assert step({"all": [one, other]}, tf.constant(1.0)) == 18.0
    assert len(traces) == 1
    assert step({"all": [other, one]}, tf.constant(0.0)) == 18.0
    assert step({"all": [one]}, tf.constant(0.0)) == 6.0
    assert len(traces) == 3
    assert one.numpy().tolist() == [3.0, 3.0]


def test_a_table_stays_a_variable() -> None:
    table = testing.sharded_variable(tf.ones([4, 2]), 2)
    other = testing.sharded_variable(tf.ones([4, 2]), 2)

    @tf.function
    def train(given: dict[str, Any], ids: tf.Tensor) -> Any:
        (variable,) = given["tables"]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(variable, ids))
        gradient = tape.gradient(loss, variable)
        variable.assign_sub(gradient)
        return gradient

    gradient = train({"tables": [table]}, tf.constant([1, 3]))
    assert gradient.indices.numpy().tolist() == [1, 3]
    train({"tables": [other]}, tf.constant([0]))
    assert table.numpy()[:, 0].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert other.numpy()[:, 0].tolist() == [0.0, 1.0, 1.0, 1.0]
    concrete = train.get_concrete_function(
        {"tables": [table]}, tf.constant([1])
    )
    with pytest.raises(TypeError, match="traced for the variable"):
        concrete({"tables": [other]}, tf.constant([1]))


@pytest.mark.parametrize("kind", [_variable, _table])
def test_a_concrete_function_takes_no_other(
    kind: Callable[[float], Any],
) -> None:
    one, other = kind(1.0), kind(2.0)
    double = tf.function(lambda v: v * 2.0).get_concrete_function(one)
    assert double(one).numpy().tolist() == [2.0, 2.0]
    with pytest.raises(TypeError):
        double(other)


def test_functions_do_not_keep_it() -> None:
    variable = _variable(1.0)
    kind = SameVariable(variable)
    function = tf.function(lambda v: v + 1.0)
    function(variable)
    assert repr(kind) == "'v:0'"
    assert kind == SameVariable(variable)
    del variable
    gc.collect()
    assert repr(kind) == "<gone>"
    assert kind != SameVariable(_variable(1.0))

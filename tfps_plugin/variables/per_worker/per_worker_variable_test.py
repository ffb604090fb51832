"""Tests of variables that each worker has for itself."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables import testing
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.per_worker.per_worker_variable import (
    PerWorkerVariable,
)
from tfps_plugin.variables.per_worker.worker_resident import Residents


def _variable(value: Any) -> PerWorkerVariable:
    described = initialization.describe(value, tf.float32, [2])
    return PerWorkerVariable(described, "own", lambda: range(3))


def _all(variable: PerWorkerVariable) -> list[list[float]]:
    return [value.numpy().tolist() for value in variable.read_all()]


def test_each_worker_changes_its_own() -> None:
    variable = _variable([1.0, 2.0])

    @tf.function
    def add(x: tf.Tensor) -> tf.Tensor:
        variable.assign_add(x * tf.ones([2]))
        return variable.read_value()

    with testing.lane(0):
        add(tf.constant(1.0))
        assert add(tf.constant(1.0)).numpy().tolist() == [3.0, 4.0]
    with testing.lane(2):
        assert add(tf.constant(5.0)).numpy().tolist() == [6.0, 7.0]
        variable.assign([0.0, 0.0])
    assert add.experimental_get_tracing_count() == 1
    assert _all(variable) == [[3.0, 4.0], [1.0, 2.0], [0.0, 0.0]]
    assert variable.numpy().tolist() == [1.0, 2.0]
    variable.assign([9.0, 9.0])
    assert _all(variable)[0] == [3.0, 4.0]


def test_each_begins_with_a_value_of_its_own() -> None:
    made = iter(range(10))
    variable = _variable(lambda: tf.fill([2], float(next(made))))
    for index in range(2):
        with testing.lane(index):
            variable.read_value()
    assert len({tuple(value) for value in _all(variable)}) == 3


def test_a_worker_that_comes_back_begins_anew() -> None:
    variable = _variable([1.0, 2.0])
    with testing.lane(0):
        variable.assign_add([1.0, 1.0])
    connection.present().part(Residents).forget_worker(0)
    with testing.lane(0):
        np.testing.assert_array_equal(variable.read_value(), [1.0, 2.0])


def test_no_tape_watches_it() -> None:
    variable = _variable([1.0, 2.0])
    assert not variable.trainable
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * 2.0)
    assert tape.gradient(loss, variable) is None

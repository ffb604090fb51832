"""Tests that results of calls are merged by dtype."""

import numpy as np
import tensorflow as tf

from tfps_plugin.training.steps.metrics import counted_sums
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.counted_sums import CountedSums
from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.states.merge_rule import MergeRule


def test_what_calls_have_counted_reaches_its_variables() -> None:
    values = [
        tf.zeros([]),
        tf.zeros([2, 3]),
        tf.constant([5, 6]),
        tf.constant([False, True, False]),
    ]
    variables = [
        WorkerLocalVariable(value, f"v{number}")
        for number, value in enumerate(values)
    ]
    sums = CountedSums(variables)

    @tf.function
    def call(scale: tf.Tensor) -> dict[str, list[tf.Tensor]]:
        sums.begin()
        variables[0].assign_add(tf.cast(scale, tf.float32))
        variables[1].assign_add(
            tf.reshape(tf.range(6.0), [2, 3]) * tf.cast(scale, tf.float32)
        )
        variables[2].assign_add([scale, 2 * scale])
        variables[3].assign([scale == 1, False, False])
        return sums.pack()

    counted: Counted = {}
    for scale in (1, 10):
        parts = counted_sums.fetch(call(tf.constant(scale)))
        counted = counted_sums.add(counted, parts)
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    sums.commit(counted)
    assert variables[0].numpy() == 11
    np.testing.assert_array_equal(
        variables[1].numpy(), 11 * np.arange(6.0).reshape(2, 3)
    )
    np.testing.assert_array_equal(variables[2].numpy(), [16, 28])
    np.testing.assert_array_equal(variables[3].numpy(), [True, True, False])


def test_nothing_added_to_something_is_that() -> None:
    one = {"sum": [np.array([1.0])]}
    assert counted_sums.add({}, one) is one
    assert counted_sums.add(one, {}) is one
    assert counted_sums.add({}, {}) == {}


def test_every_rule_puts_together_what_calls_have_counted() -> None:
    """Calls begin at neutral elements, not at the chief's values."""
    variables = []
    for value, rule in (
        (tf.constant([3.0, -9.0]), MergeRule.MAX),
        (tf.constant([3, -9]), MergeRule.MIN),
        (tf.constant([False, True]), MergeRule.MAX),
        (tf.constant([True, True]), MergeRule.MIN),
        (tf.constant([0.5, 0.5]), MergeRule.SUM),
    ):
        variable = WorkerLocalVariable(value, rule.name)
        variable.settle(rule)
        variables.append(variable)
    sums = CountedSums(variables)

    @tf.function
    def call(x: tf.Tensor) -> dict[str, list[tf.Tensor]]:
        sums.begin()
        most, least, any_of, all_of, total = variables
        if x > 0:
            most.assign(tf.maximum(most, [x, -x]))
            number = tf.cast(x, tf.int32)
            least.assign(tf.minimum(least, [number, -number]))
            any_of.assign(any_of | [x > 5.0, False])
            all_of.assign(all_of & [x > 2.0, True])
            total.assign_add([x, 0.0])
        return sums.pack()

    counted: Counted = {}
    for x in (2.0, 7.0, 0.0):
        with testing.lane(int(x)):
            parts = counted_sums.fetch(call(tf.constant(x)))
        counted = counted_sums.add(counted, parts)
    sums.commit(counted)
    assert [v.numpy().tolist() for v in variables] == [
        [7.0, -2.0],
        [2, -9],
        [True, True],
        [False, True],
        [9.5, 0.5],
    ]

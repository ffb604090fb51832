"""Sums of calls are added up by dtype, each in its own place."""

import numpy as np
import tensorflow as tf

from tfps_plugin.training.steps import counted_sums
from tfps_plugin.training.steps.counted_sums import CountedSums
from tfps_plugin.variables.worker_local import WorkerLocalVariable


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
    def call(scale: tf.Tensor) -> list[tf.Tensor]:
        sums.zero()
        variables[0].assign_add(tf.cast(scale, tf.float32))
        variables[1].assign_add(
            tf.reshape(tf.range(6.0), [2, 3]) * tf.cast(scale, tf.float32)
        )
        variables[2].assign_add([scale, 2 * scale])
        variables[3].assign([scale == 1, False, False])
        return sums.pack()

    counted: list[np.ndarray] = []
    for scale in (1, 10):
        parts = [part.numpy() for part in call(tf.constant(scale))]
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
    one = [np.array([1.0])]
    assert counted_sums.add([], one) is one
    assert counted_sums.add(one, []) is one
    assert counted_sums.add([], []) == []

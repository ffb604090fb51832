"""Tests of functions that tell which step a worker has made."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.training.steps.scheduled import numbered_functions


class _Counting:
    """A function that counts its calls, and uses much of TensorFlow."""

    def __init__(self) -> None:
        self.count = tf.Variable(0, dtype=tf.int64)
        self.numbers: list[tf.Tensor] = []

    @tf.function
    def __call__(self, x: Any, *, scale: float) -> Any:
        number = tf.identity(self.count.assign_add(1))
        self.numbers.append(number)
        ragged = tf.RaggedTensor.from_row_lengths(x, [1, 2])
        total = tf.constant(0.0)
        for value in x:
            total += tf.cond(value > 2.0, lambda v=value: v, lambda: 0.0)
        # Operations do not always come after those that they wait for.
        early = tf.identity(x[0])
        late = self.count.assign_add(10)
        early.op._add_control_input(late.op)
        return {"scaled": x * scale, "ragged": ragged}, None, [total, early]


def test_a_numbered_function_returns_the_same_and_a_number() -> None:
    counting = _Counting()
    x = tf.constant([1.0, 2.0, 3.0])
    traced = counting.__call__.get_concrete_function(x, scale=2.0)
    (number,) = counting.numbers
    numbered = numbered_functions.numbered(traced, number)
    assert numbered_functions.numbered(traced, number) is numbered
    for times in range(3):
        returned = numbered(x, scale=2.0)
        outputs, number_now = numbered_functions.result_of(returned)
        assert number_now == 11 * times + 1
        # Effects take place once.
        assert counting.count.numpy() == 11 * (times + 1)
        made, none, (total, early) = outputs
        np.testing.assert_array_equal(made["scaled"], [2.0, 4.0, 6.0])
        assert made["ragged"].to_list() == [[1.0], [2.0, 3.0]]
        assert none is None
        assert (float(total), float(early)) == (3.0, 1.0)
    # The function of the user is as it was.
    counting.count.assign(0)
    made, none, _ = counting(x, scale=2.0)
    assert none is None
    assert set(made) == {"scaled", "ragged"}
    assert counting.count.numpy() == 11
    assert len(counting.numbers) == 1


def test_a_number_costs_no_elements() -> None:
    @tf.function
    def function(number: Any) -> Any:
        return tf.identity(number, name="number")

    traced = function.get_concrete_function(tf.TensorSpec([], tf.int64))
    (number,) = traced.outputs
    numbered = numbered_functions.numbered(traced, number)
    _, told = numbered(tf.constant(7, tf.int64))
    assert tf.size(told).numpy() == 0
    assert numbered_functions.result_of((None, told)).number == 7

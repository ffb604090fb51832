"""Tests of rows that are repeated, and summed again."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables.lookup import repeated_rows

_ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize("positions", [[], [2], [1, 1, 3], [[0, 3], [3, 2]], 2])
@pytest.mark.parametrize("traced", [False, True])
def test_rows_and_gradient_are_those_of_gather(
    positions: object, traced: bool
) -> None:
    where = tf.constant(positions, tf.int32)
    upstream = tf.random.stateless_uniform([*where.shape, 3], [1, 2])

    def both(lookup: object) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        rows = tf.constant(_ROWS)
        with tf.GradientTape() as outer:
            outer.watch(rows)
            with tf.GradientTape() as tape:
                tape.watch(rows)
                found = lookup(rows, where)  # type: ignore[operator]
                # Its own gradient depends on the rows, too.
                loss = tf.reduce_sum(found**3 * upstream)
            gradient = tf.convert_to_tensor(tape.gradient(loss, rows))
        return found, gradient, outer.gradient(gradient, rows)

    wrap = tf.function if traced else lambda function: function
    mine = wrap(lambda: both(repeated_rows.repeat))()
    theirs = wrap(lambda: both(tf.gather))()
    for own, expected in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(
            tf.convert_to_tensor(own), tf.convert_to_tensor(expected)
        )


def test_the_shape_is_known_when_it_is_traced() -> None:
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3]),
            tf.TensorSpec([None, 5], tf.int32),
        ]
    )
    def look_up(rows: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        found = repeated_rows.repeat(rows, positions)
        assert found.shape.as_list() == [None, 5, 3]
        return found

    assert look_up(tf.zeros([2, 3]), tf.zeros([4, 5], tf.int32)).shape[0] == 4


def test_rows_that_are_looked_up_again_are_summed() -> None:
    rows = tf.constant(_ROWS)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        found = repeated_rows.repeat(rows, tf.constant([1, 1, 3]))
        # The gradient of this is one of slices.
        loss = tf.reduce_sum(tf.gather(found, [0, 1, 1]))
    gradient = tf.convert_to_tensor(tape.gradient(loss, rows))
    np.testing.assert_array_equal(gradient[:, 0], [0.0, 3.0, 0.0, 0.0])


def _operations(shape: list[int | None], dtype: str) -> set[str]:
    @tf.function(
        input_signature=[
            tf.TensorSpec(shape, dtype),
            tf.TensorSpec([None], tf.int32),
        ]
    )
    def run(values: tf.Tensor, segments: tf.Tensor) -> tf.Tensor:
        return repeated_rows.segment_sums(values, segments, tf.constant(3))

    operations = run.get_concrete_function().graph.get_operations()
    return {operation.type for operation in operations}


@given(
    st.lists(st.integers(0, 5), max_size=30),
    st.sampled_from([(), (1,), (2,), (16,), (31,), (32,), (2, 3)]),
    st.sampled_from(["float32", "float64", "float16", "int32"]),
    st.sampled_from(["int32", "int64"]),
)
def test_sums_are_those_of_tensorflow_bit_for_bit(
    segments: list[int], row_shape: tuple[int, ...], dtype: str, id_dtype: str
) -> None:
    random = np.random.default_rng(len(segments))
    values = tf.constant(
        100.0 * random.normal(size=(len(segments), *row_shape)), "float64"
    )
    arguments = (
        tf.cast(values, dtype),
        tf.constant(segments, id_dtype),
        tf.constant(6, id_dtype),
    )
    np.testing.assert_array_equal(
        repeated_rows.segment_sums(*arguments),
        tf.math.unsorted_segment_sum(*arguments),
    )


def test_what_is_no_number_stays_where_it_is() -> None:
    values = tf.constant([[np.inf, 1.0], [np.nan, 2.0], [3.0, -0.0]])
    np.testing.assert_array_equal(
        repeated_rows.segment_sums(values, tf.constant([1, 0, 2]), 3),
        [[np.nan, 2.0], [np.inf, 1.0], [3.0, 0.0]],
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "is_product"),
    [
        ([None, 16], "float32", True),
        ([None, 1], "float32", False),
        ([None, 64], "float32", False),
        ([None, 16], "float16", False),
        ([None, None], "float32", False),
        ([None, 4, 4], "float32", False),
    ],
)
def test_short_rows_are_multiplied(
    shape: list[int | None], dtype: str, is_product: bool
) -> None:
    found = _operations(shape, dtype)
    assert ("SparseTensorDenseMatMul" in found) == is_product
    assert ("UnsortedSegmentSum" in found) != is_product


def test_a_gpu_sums_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_logical_devices(kind: str) -> list[Any]:
        return ["/job:worker/replica:0/task:0/device:GPU:0"] * (kind == "GPU")

    monkeypatch.setattr(tf.config, "list_logical_devices", list_logical_devices)
    assert "UnsortedSegmentSum" in _operations([None, 16], "float32")


def test_sums_can_be_differentiated() -> None:
    values = tf.reshape(tf.range(6.0), [3, 2])
    with tf.GradientTape() as tape:
        tape.watch(values)
        sums = repeated_rows.segment_sums(values, tf.constant([1, 0, 1]), 2)
        loss = tf.reduce_sum(sums * [[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(
        tape.gradient(loss, values), [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]
    )

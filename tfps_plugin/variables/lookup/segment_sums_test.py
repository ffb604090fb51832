"""Tests of the sums of rows that belong together."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables.lookup import segment_sums


def _operations(shape: list[int | None], dtype: str) -> set[str]:
    @tf.function(
        input_signature=[
            tf.TensorSpec(shape, dtype),
            tf.TensorSpec([None], tf.int32),
        ]
    )
    def run(values: tf.Tensor, segments: tf.Tensor) -> tf.Tensor:
        return segment_sums.segment_sums(values, segments, tf.constant(3))

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
        segment_sums.segment_sums(*arguments),
        tf.math.unsorted_segment_sum(*arguments),
    )


def test_what_is_no_number_stays_where_it_is() -> None:
    values = tf.constant([[np.inf, 1.0], [np.nan, 2.0], [3.0, -0.0]])
    np.testing.assert_array_equal(
        segment_sums.segment_sums(values, tf.constant([1, 0, 2]), 3),
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
        sums = segment_sums.segment_sums(values, tf.constant([1, 0, 1]), 2)
        loss = tf.reduce_sum(sums * [[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(
        tape.gradient(loss, values), [[3.0, 4.0], [1.0, 2.0], [3.0, 4.0]]
    )

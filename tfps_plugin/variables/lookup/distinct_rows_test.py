import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables.lookup import distinct_rows
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows

_ROWS = 9


@given(
    st.lists(st.integers(0, _ROWS - 1), max_size=20),
    st.sampled_from(["int32", "int64"]),
    st.sampled_from(["float32", "float64", "int32"]),
    st.sampled_from([(), (3,), (2, 2)]),
)
def test_repeated_ids_are_summed(
    ids: list[int], id_dtype: str, dtype: str, row_shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).integers(-9, 9, (len(ids), *row_shape))
    expected = np.zeros((_ROWS, *row_shape), dtype)
    np.add.at(expected, ids, values)
    summed = distinct_rows.distinct(
        tf.IndexedSlices(
            tf.constant(values, dtype),
            tf.constant(ids, id_dtype),
            tf.constant([_ROWS, *row_shape]),
        )
    )
    assert summed.indices.numpy().tolist() == list(dict.fromkeys(ids))
    np.testing.assert_array_equal(tf.convert_to_tensor(summed), expected)
    assert summed.dtype == dtype


def test_what_is_distinct_is_not_summed_again() -> None:
    once = DistinctRows(tf.ones([2, 3]), tf.constant([4, 1]))
    assert distinct_rows.distinct(once) is once


@pytest.mark.compat
def test_two_gradients_together_are_not_distinct() -> None:
    variable = tf.Variable(tf.ones([_ROWS, 3]))

    @tf.custom_gradient
    def rows(handle: tf.Tensor) -> tuple[tf.Tensor, object]:
        def gradient(upstream: tf.Tensor) -> DistinctRows:
            return DistinctRows(
                upstream, tf.constant([4, 1]), tf.constant([_ROWS, 3])
            )

        return tf.ones([2, 3]), gradient

    kinds = []

    @tf.function
    def differentiate() -> None:
        for times in (1, 2):
            with tf.GradientTape() as tape:
                tape.watch(variable)
                results = [rows(variable.handle) for _ in range(times)]
                total = tf.add_n(results)
            kinds.append(type(tape.gradient(total, variable)))

    differentiate()
    assert kinds == [DistinctRows, tf.IndexedSlices]

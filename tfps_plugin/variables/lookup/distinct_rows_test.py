import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables.lookup import distinct_rows
from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.sharding.layout import RowLayout

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


@pytest.mark.parametrize("layout", [RowLayout((0, 4, 9)), RowLayout((0, 9))])
def test_order_of_a_lookup_serves_the_update(layout: RowLayout) -> None:
    other = RowLayout((0, 5, 9))

    @tf.function
    def split() -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        order, _ = shard_order.sort(layout, *tf.unique([8, 0, 5]))
        rows = DistinctRows(
            tf.zeros([3, 2]), tf.identity(order.ids_U), order=order
        )
        doubled = 2.0 * tf.cast(order.ids_U, tf.float32)
        rows = rows.with_values(doubled)
        graph = order.ids_U.graph
        before = len(graph.get_operations())
        ids, values = rows.split_by_shard(layout, doubled)
        made = {one.type for one in graph.get_operations()[before:]}
        assert "DynamicPartition" not in made
        before = len(graph.get_operations())
        rows.split_by_shard(other, doubled)
        made = {one.type for one in graph.get_operations()[before:]}
        assert "DynamicPartition" in made
        return list(ids), values

    ids, values = split()
    for offset, mine, doubled in zip(layout.offsets, ids, values, strict=False):
        np.testing.assert_array_equal(2.0 * (mine.numpy() + offset), doubled)
    assert sum(map(len, ids)) == 3

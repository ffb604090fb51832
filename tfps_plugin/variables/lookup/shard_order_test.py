"""Tests of ids in the order of the shards that hold them."""

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.variables.lookup import shard_order
from tfps_plugin.variables.sharding.layout import RowLayout

_LAYOUT = RowLayout((0, 3, 3, 10))
_ROWS = 12


@st.composite
def _layouts(draw: st.DrawFn) -> RowLayout:
    """Draws any sharding of a table; shards may be empty."""
    cuts = draw(st.lists(st.integers(0, _ROWS), max_size=5))
    return RowLayout((0, *sorted(cuts), _ROWS))


@hypothesis.settings(deadline=None, max_examples=50)
@hypothesis.given(
    st.lists(st.integers(0, 4), min_size=2, max_size=5),
    st.sampled_from([tf.int32, tf.int64]),
)
def test_numbers_of_shards(sizes: list[int], dtype: tf.DType) -> None:
    layout = RowLayout((0, *(int(end) for end in np.cumsum(sizes))))
    inside = [shard for shard in range(len(sizes)) for _ in layout.rows(shard)]
    ids = tf.range(layout.num_rows, dtype=dtype)
    shards = shard_order.shard_numbers(layout, ids)
    assert shards.dtype == tf.int32
    np.testing.assert_array_equal(shards, inside)
    # Ids outside of the table belong to some shard, too.
    outside = tf.constant([-7, layout.num_rows, layout.num_rows + 7], dtype)
    shards = shard_order.shard_numbers(layout, outside).numpy()
    assert set(shards) <= set(range(len(sizes)))


@hypothesis.settings(deadline=None, max_examples=25)
@hypothesis.given(
    st.lists(st.integers(0, 9), max_size=20),
    st.sampled_from([tf.int32, tf.int64]),
    st.booleans(),
)
def test_ids_are_those_of_before(
    ids: list[int], dtype: tf.DType, is_sorted: bool
) -> None:
    if is_sorted:
        # The ids of each shard may be in any order.
        ids = sorted(ids, key=lambda number: number >= 3)

    @tf.function(input_signature=[tf.TensorSpec([None], dtype)])
    def sort(
        ids_N: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        order, positions = shard_order.sort(
            _LAYOUT, *tf.unique(ids_N), is_sorted=is_sorted
        )
        rows_U2 = tf.stack([order.ids_U, 2 * order.ids_U], 1)
        parts = order.split(rows_U2)
        tf.debugging.assert_equal(order.join(parts), rows_U2)
        return order.ids_U, positions, order.local_ids, parts

    ids_U, positions, local_ids, rows = sort(tf.constant(ids, dtype))
    assert sorted(ids_U.numpy()) == sorted(set(ids))
    np.testing.assert_array_equal(tf.gather(ids_U, positions), ids)
    # The ids of each shard in turn, with their values.
    together = []
    for shard, (mine, mine_U2) in enumerate(zip(local_ids, rows, strict=True)):
        held = np.asarray(mine) + _LAYOUT.offsets[shard]
        assert set(held) <= set(_LAYOUT.rows(shard))
        np.testing.assert_array_equal(mine_U2, np.stack([held, 2 * held], 1))
        together += list(held)
    np.testing.assert_array_equal(ids_U, together)


def test_order_is_usable_only_where_it_was_found() -> None:
    outside, positions = shard_order.sort(_LAYOUT, *tf.unique([8, 0, 8]))
    np.testing.assert_array_equal(outside.ids_U, [0, 8])
    np.testing.assert_array_equal(positions, [1, 0, 1])
    assert outside.is_usable

    @tf.function
    def sort() -> None:
        order, _ = shard_order.sort(_LAYOUT, *tf.unique([8, 0, 8]))
        assert order.is_usable
        assert not outside.is_usable

        @tf.function
        def inside() -> None:
            assert not order.is_usable

        inside()

    sort()


@hypothesis.given(
    _layouts(),
    st.lists(st.integers(0, _ROWS - 1), max_size=20),
    st.sampled_from([tf.int32, tf.int64]),
)
def test_each_id_goes_to_the_shard_that_holds_it(
    layout: RowLayout, ids: list[int], dtype: tf.DType
) -> None:
    order = tf.range(len(ids))
    local_ids, (parts, again) = shard_order.split_by_shard(
        layout, tf.constant(ids, dtype), order, order * 2
    )
    for shard in range(layout.num_shards):
        rows = layout.rows(shard)
        mine = [i for i, id_ in enumerate(ids) if id_ in rows]
        assert parts[shard].numpy().tolist() == mine
        assert again[shard].numpy().tolist() == [2 * i for i in mine]
        assert local_ids[shard].numpy().tolist() == [
            ids[i] - rows.start for i in mine
        ]

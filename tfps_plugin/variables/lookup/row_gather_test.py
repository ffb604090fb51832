import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup import row_gather
from tfps_plugin.variables.sharding.layout import RowLayout

_ROWS = 12


@st.composite
def _layouts(draw: st.DrawFn) -> RowLayout:
    """Any cuts of the table; shards may be empty."""
    cuts = draw(st.lists(st.integers(0, _ROWS), max_size=5))
    return RowLayout((0, *sorted(cuts), _ROWS))


@given(
    _layouts(),
    st.lists(st.integers(0, _ROWS - 1), max_size=20),
    st.sampled_from([tf.int32, tf.int64]),
)
def test_each_id_goes_to_the_shard_that_holds_it(
    layout: RowLayout, ids: list[int], dtype: tf.DType
) -> None:
    order = tf.range(len(ids))
    local_ids, (parts, again) = row_gather.split_by_shard(
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


@given(
    _layouts(),
    st.lists(st.integers(0, _ROWS - 1), max_size=20),
    st.sampled_from([(), (3,), (2, 2)]),
)
def test_rows_are_stitched_in_the_order_of_the_ids(
    layout: RowLayout, ids: list[int], row_shape: tuple[int, ...]
) -> None:
    value = np.random.default_rng(0).normal(size=(_ROWS, *row_shape))
    shards = [
        testing.remote_variable(value[rows.start : rows.stop])
        for rows in (layout.rows(i) for i in range(layout.num_shards))
    ]
    rows = row_gather.gather_rows(
        layout,
        shards,
        tf.float64,
        tf.constant(ids, tf.int64),
    )
    np.testing.assert_array_equal(rows, value[ids])

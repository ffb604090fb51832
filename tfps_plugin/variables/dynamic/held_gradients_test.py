"""Tests of gradients of rows that are held back."""

import types
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.dynamic import held_gradients
from tfps_plugin.variables.dynamic.found_order import FoundOrder
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.sharding.layout import RowLayout

_CPU = "/device:CPU:0"
_LAYOUT = RowLayout((0, 10, 30))
# Any int64.
_A, _B, _C, _D = -(2**63), -1, 5, 2**63 - 1


def _table(*lookups: FoundOrder) -> Any:
    table = types.SimpleNamespace(
        layout=_LAYOUT,
        shape=tf.TensorShape([30, 2]),
        shards=2 * [types.SimpleNamespace(device=_CPU)],
    )
    table.dynamic_table = lambda: types.SimpleNamespace(
        directories=lambda: [None, None]
    )

    def behind(order: Any, num_shards: int) -> list[FoundOrder]:
        assert num_shards == 2
        return list(lookups) if order is None else [order]

    table.lookups_of_steps = types.SimpleNamespace(behind=behind)
    return table


def _lookup(rows: list[list[int]], ids: list[list[int]]) -> FoundOrder:
    numbers = [*rows[0], *(10 + row for row in rows[1])]
    order = ShardOrder(
        _LAYOUT,
        tf.constant(numbers),
        [tf.constant(each, tf.int32) for each in rows],
        tf.constant([len(each) for each in rows]),
        tf.constant(len(numbers)),
    )
    directories: Any = [None, None]
    return FoundOrder.of(
        order,
        _table(),
        directories,
        [tf.constant(each, tf.int64) for each in ids],
    )


def test_ids_of_the_rows_of_one_lookup_and_of_several() -> None:
    first = _lookup([[7, 3], [0]], [[_A, _B], [_C]])
    second = _lookup([[3], [12]], [[_B], [_D]])
    table = _table(first, second)
    alone = DistinctRows(tf.zeros([3, 2]), tf.constant([7, 3, 10]), order=first)
    assert list(held_gradients.ids_of(table, alone)) == [_A, _B, _C]
    several = tf.IndexedSlices(tf.zeros([5, 2]), tf.constant([22, 3, 7, 3, 10]))
    assert list(held_gradients.ids_of(table, several)) == [_D, _B, _A, _B, _C]


def test_only_the_last_id_of_a_row_has_a_gradient() -> None:
    rows = tf.constant([12, 3, 12, 7, 12, 3])
    ids = tf.constant([_A, _B, _C, _D, _C, _B], tf.int64)
    values = tf.constant([[1.0, 2.0]]) * tf.constant(
        [[1.0], [10.0], [100.0], [1e3], [1e4], [1e5]]
    )
    gradient = held_gradients.summed(_table(), rows, ids, values)
    order: Any = gradient.order_by(_LAYOUT)
    found = dict(
        zip(
            gradient.indices.numpy().tolist(),
            gradient.values.numpy()[:, 0].tolist(),
            strict=True,
        )
    )
    assert found == {3: 10.0 + 1e5, 7: 1e3, 12: 100.0 + 1e4}
    of_rows = dict(
        zip(
            np.concatenate([order.local_ids[0], order.local_ids[1] + 10]),
            np.concatenate(order.ids_there),
            strict=True,
        )
    )
    assert of_rows == {3: _B, 7: _D, 12: _C}
    assert list(order.counts_S) == [2, 1]
    assert [len(each) for each in order.split(gradient.values)] == [2, 1]

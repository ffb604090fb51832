"""Tests of variables on parameter servers; here both are this process."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.strategy.ps_variables import PsVariables
from tfps_plugin.variables import testing
from tfps_plugin.variables.initial_values import initialization

_ROWS = 10
_ROW_BYTES = 4 * 3


def _described(*shape: int) -> Any:
    values = tf.reshape(tf.range(float(np.prod(shape))), shape)
    return initialization.describe(values, None, None)


def _on_ps(num_ps: int = 2) -> PsVariables:
    return PsVariables([testing.LOCAL_DEVICE] * num_ps)


def test_variables_go_to_the_ps_with_the_fewest_bytes() -> None:
    on_ps = _on_ps()
    on_ps.whole(_described(100), "large", {})
    for name in ("a", "b"):
        on_ps.whole(_described(20), name, {})
    on_ps.unfilled(tf.TensorShape([5]), tf.int64, "without a value", {})
    assert on_ps.bytes_per_ps == (400, 160 + 40)


def test_shards_hold_the_rows_of_the_whole() -> None:
    on_ps = _on_ps()
    described = _described(_ROWS, 3)
    table = on_ps.sharded(described, 3, "table", {"trainable": False})
    shards = table.variables
    assert [shard.shape[0] for shard in shards] == [4, 3, 3]
    assert not any(shard.trainable for shard in shards)
    rows = tf.concat([shard.read_value() for shard in shards], 0)
    np.testing.assert_array_equal(rows, described.make())
    assert sorted(on_ps.bytes_per_ps) == [4 * _ROW_BYTES, 6 * _ROW_BYTES]


def test_a_slot_is_cut_and_locked_as_its_table() -> None:
    on_ps = _on_ps(1)
    table = on_ps.sharded(_described(_ROWS, 3), 2, "table", {})
    slot = on_ps.slot_of_shards(table, _described(_ROWS, 3), "slot", {})
    assert slot.layout == table.layout
    for shard, of_slot in zip(table.variables, slot.variables, strict=True):
        assert of_slot.update_lock is shard.update_lock
    assert slot in table.family
    assert on_ps.bytes_per_ps == (2 * _ROWS * _ROW_BYTES,)


def test_a_slot_of_a_whole_variable_is_beside_it() -> None:
    on_ps = _on_ps(1)
    variable = on_ps.whole(_described(4), "variable", {})
    slot = on_ps.beside(variable, _described(4), "slot", {})
    scalar = on_ps.beside(variable, _described(1), "of another shape", {})
    for each in (slot, scalar):
        assert each.device == variable.device
        assert each.update_lock is variable.update_lock
    assert [member is slot for member in variable.family] == [True]
    assert on_ps.bytes_per_ps == (16 + 16 + 4,)

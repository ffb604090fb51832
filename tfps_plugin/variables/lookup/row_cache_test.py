"""Looks up rows of variables of this process, as a worker would."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup import row_cache
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.row_cache import RowCache

_ROWS = 12
_IDS = [3, 7, 7, 11, 0]


def _table() -> Any:
    value = np.arange(2 * _ROWS, dtype="float32").reshape(_ROWS, 2)
    return testing.sharded_variable(value, 3)


def _raw_add(table: Any) -> None:
    """Changes the rows as an update on a parameter server does."""
    for shard in table.shards:
        tf.raw_ops.AssignAddVariableOp(
            resource=shard.own_handle, value=tf.ones(shard.shape)
        )


def _look_up(table: Any, cache: RowCache) -> Callable[[], np.ndarray]:
    @tf.function
    def look_up() -> tf.Tensor:
        return row_lookup.look_up(table, tf.constant(_IDS), cache=cache)

    return lambda: look_up().numpy()


def _expected(table: Any) -> np.ndarray:
    return table.numpy()[_IDS]


def test_rows_are_as_old_as_they_may_be() -> None:
    table = _table()
    look_up = _look_up(table, RowCache(table, 100, max_age_steps=2))
    read_at = []
    for _ in range(7):
        read_at.append(float((look_up() - _expected(table))[0, 0]))
        _raw_add(table)
    assert read_at == [0.0, -1.0, -2.0] * 2 + [0.0]


@pytest.mark.parametrize("is_shard", [False, True])
def test_what_the_program_sets_is_read_by_every_lane(is_shard: bool) -> None:
    table = _table()
    look_up = _look_up(table, RowCache(table, 100, max_age_steps=1_000))
    for number in (None, 1, 2):
        for _ in range(2):
            if number is None:
                np.testing.assert_array_equal(look_up(), _expected(table))
            else:
                with testing.lane(number):
                    found = look_up()
                np.testing.assert_array_equal(found, _expected(table))
    before = _expected(table)
    _raw_add(table)
    np.testing.assert_array_equal(look_up(), before)
    changed = table.shards[-1] if is_shard else table
    changed.assign(tf.zeros(changed.shape))
    for number in (1, 2):
        with testing.lane(number):
            found = look_up()
        np.testing.assert_array_equal(found, _expected(table))
    np.testing.assert_array_equal(look_up(), _expected(table))


def test_rows_that_never_arrive_leave_no_trace() -> None:
    table = _table()
    cache = RowCache(table, 4, max_age_steps=1_000)
    fails = tf.Variable(False)
    ids = tf.Variable([0, 1, 2, 3])

    @tf.function
    def look_up() -> tf.Tensor:
        rows = row_lookup.look_up(table, ids.read_value(), cache=cache)
        # It runs while the rows are on their way, or after.
        tf.debugging.assert_equal(fails, False)
        return rows

    for first in range(0, 8):
        ids.assign([first, first + 1, first + 2, first + 3])
        fails.assign(first % 2 == 1)
        if first % 2:
            with pytest.raises(tf.errors.InvalidArgumentError):
                look_up()
            fails.assign(False)
        expected = table.numpy()[first : first + 4]
        np.testing.assert_array_equal(look_up(), expected)


def test_a_lookup_that_did_not_end_makes_all_rows_too_old() -> None:
    table = _table()
    cache = RowCache(table, 100, max_age_steps=1_000)
    look_up = _look_up(table, cache)
    look_up()
    # As if places had been written, and their rows not.
    cache._rows.assign(-tf.ones(cache._rows.shape))
    assert np.all(look_up() == -1)
    numbers = cache._numbers.numpy()
    numbers[row_cache._ENDED] -= 1
    cache._numbers.assign(numbers)
    np.testing.assert_array_equal(look_up(), _expected(table))
    np.testing.assert_array_equal(look_up(), _expected(table))


def test_all_rows_are_too_old_after_a_pause() -> None:
    table = _table()
    cache = RowCache(table, 100, max_age_steps=1_000)
    look_up = _look_up(table, cache)
    look_up()
    _raw_add(table)
    numbers = cache._numbers.numpy()
    numbers[row_cache._USED_AT] -= row_cache._PAUSE_MICROSECONDS
    cache._numbers.assign(numbers)
    np.testing.assert_array_equal(look_up(), _expected(table))


def test_gradients_are_those_of_the_rows() -> None:
    table = _table()
    cache = RowCache(table, 100, max_age_steps=1_000)

    @tf.function
    def gradient() -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = row_lookup.look_up(table, tf.constant(_IDS), cache=cache)
            loss = tf.reduce_sum(rows * rows) / 2.0
        return tf.convert_to_tensor(tape.gradient(loss, table))

    expected = np.zeros((_ROWS, 2))
    np.add.at(expected, _IDS, table.numpy()[_IDS])
    for _ in range(2):
        np.testing.assert_array_equal(gradient(), expected)
    assert cache.totals() == (8, 4)

"""Looks up rows of variables of this process, as a worker would."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
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


def _in_branch(look_up: Callable[[], tf.Tensor]) -> tf.Tensor:
    return tf.cond(tf.constant(True), look_up, lambda: tf.zeros([len(_IDS), 2]))


def _in_loop(look_up: Callable[[], tf.Tensor]) -> tf.Tensor:
    return tf.while_loop(
        lambda number, _: number < 1,
        lambda number, _: (number + 1, look_up()),
        (tf.constant(0), tf.zeros([len(_IDS), 2])),
    )[1]


def _in_function(look_up: Callable[[], tf.Tensor]) -> tf.Tensor:
    return tf.function(look_up)()


_INSIDE = [_in_branch, _in_loop, _in_function]


def _half_squares(
    table: Any, cache: RowCache, inside: Callable[..., tf.Tensor]
) -> tf.Tensor:
    """Returns a loss whose gradients are the rows."""
    rows = inside(
        lambda: row_lookup.look_up(table, tf.constant(_IDS), cache=cache)
    )
    return tf.reduce_sum(rows * rows) / 2.0


def _rows_as_gradient(table: Any) -> np.ndarray:
    expected = np.zeros((_ROWS, 2))
    np.add.at(expected, _IDS, table.numpy()[_IDS])
    return expected


@pytest.mark.parametrize("inside", _INSIDE)
def test_a_tape_outside_of_the_lookup_gets_all_gradients(
    inside: Callable[..., tf.Tensor],
) -> None:
    table = _table()
    cache = RowCache(table, 100, max_age_steps=1_000)

    @tf.function
    def gradient() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = _half_squares(table, cache, inside)
        return tf.convert_to_tensor(tape.gradient(loss, table))

    for _ in range(3):
        np.testing.assert_array_equal(gradient(), _rows_as_gradient(table))
        _raw_add(table)
    assert cache.totals() == (0, 0)


@pytest.mark.parametrize("inside", _INSIDE)
def test_a_lookup_inside_with_a_tape_of_its_own_has_its_cache(
    inside: Callable[..., tf.Tensor],
) -> None:
    table = _table()
    cache = RowCache(table, 100, max_age_steps=1_000)

    @tf.function
    def gradient() -> tf.Tensor:
        def of_own_tape() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = _half_squares(table, cache, lambda look_up: look_up())
            return tf.gather(
                tf.convert_to_tensor(tape.gradient(loss, table)), _IDS
            )

        return inside(of_own_tape)

    for _ in range(2):
        np.testing.assert_array_equal(
            gradient(), _rows_as_gradient(table)[_IDS]
        )
    assert cache.totals() == (8, 4)


def _function_of_loss(table: Any, cache: RowCache) -> Callable[[], tf.Tensor]:
    return tf.function(
        lambda: _half_squares(table, cache, lambda look_up: look_up())
    )


def test_a_tape_around_a_function_gets_all_gradients() -> None:
    table = _table()
    cache = RowCache(table, 100, max_age_steps=1_000)
    loss_of = _function_of_loss(table, cache)
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = loss_of()
        found = tf.convert_to_tensor(tape.gradient(loss, table))
        np.testing.assert_array_equal(found, _rows_as_gradient(table))
    assert cache.totals() == (0, 0)


def test_a_tape_around_a_function_traced_before_is_refused() -> None:
    table = _table()
    cache = RowCache(table, 100, max_age_steps=1_000)
    loss_of = _function_of_loss(table, cache)
    for _ in range(2):
        loss_of()
    assert cache.totals() == (8, 4)
    with (
        tf.GradientTape(),
        pytest.raises(errors.UnsupportedError, match="cache_rows"),
    ):
        loss_of()

"""Tests of slices of a sharded table, against those of a tf.Variable."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables import testing
from tfps_plugin.variables.methods import table_slices
from tfps_plugin.variables.saving import shard_reader

_VALUE = np.arange(42.0, dtype="float32").reshape(7, 3, 2)
_KEYS = [
    4,
    -1,
    (2, slice(1, None)),
    (slice(1, 6), 0, 1),
    (slice(None, None, 2), slice(None, None, -1)),
    (slice(5, 1, -2), 1),
    Ellipsis,
    (Ellipsis, 1),
    (slice(2, 4), Ellipsis, 0),
    slice(None),
    slice(3, 3),
    (slice(0, 3), None, 2),
]


def _pair() -> tuple[tf.Variable, Any]:
    return tf.Variable(_VALUE), testing.sharded_variable(_VALUE, 3)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("key", _KEYS, ids=str)
def test_they_are_read_and_assigned(key: Any, in_function: bool) -> None:
    plain, table = _pair()

    def use(variable: Any) -> tf.Tensor:
        part = variable[key]
        variable[key].assign(part * 2.0 + 1.0)
        return part

    part = (tf.function(use) if in_function else use)(table)
    np.testing.assert_array_equal(part, use(plain))
    np.testing.assert_array_equal(table.numpy(), plain.numpy())


def test_one_number_fills_a_slice() -> None:
    plain, table = _pair()
    for variable in (plain, table):
        variable[1:6, 1].assign(-1.0, name="x")
    np.testing.assert_array_equal(table.numpy(), plain.numpy())


@pytest.mark.parametrize("row", [7, 100, -8])
def test_a_row_that_is_not_there_is_an_error(row: int) -> None:
    for variable in _pair():
        with pytest.raises(tf.errors.InvalidArgumentError, match="of bounds"):
            variable[row]
        with pytest.raises(ValueError, match="of bounds"):
            tf.function(lambda v=variable: v[row])()
    with pytest.raises(IndexError, match="of bounds"):
        variable[row]


def test_iteration_ends() -> None:
    _, table = _pair()
    np.testing.assert_array_equal(np.stack([*table]), _VALUE)
    assert len(table) == 7


def test_one_row_is_all_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(table: Any) -> None:
        raise AssertionError("the whole table was read")

    monkeypatch.setattr(shard_reader, "read_whole", refuse)
    _, table = _pair()
    for row in (5, -2, np.int64(5), tf.constant(5), tf.constant(-2)):
        np.testing.assert_array_equal(table[row], _VALUE[5])
        np.testing.assert_array_equal(table[row, 1:, 0], _VALUE[5, 1:, 0])


def test_a_row_has_a_gradient_of_that_row() -> None:
    _, table = _pair()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(table[5] ** 2)
    gradient = tape.gradient(loss, table)
    np.testing.assert_array_equal(gradient.indices, [5])
    np.testing.assert_array_equal(gradient.values[0], 2 * _VALUE[5])


def test_a_place_known_only_at_run_time_is_not_assigned() -> None:
    _, table = _pair()
    for key in (tf.constant(1), (1, tf.constant(0)), np.newaxis):
        with pytest.raises(errors.UnsupportedError, match="scatter"):
            table[key].assign(0.0)


def test_rows_of_a_key() -> None:
    assert table_slices.static_rows(-1, 7) == range(6, 7)
    assert table_slices.static_rows(slice(-3, None), 7) == range(4, 7)
    assert table_slices.static_rows(slice(None, None, -1), 3) == range(
        2, -1, -1
    )
    assert table_slices.static_rows(Ellipsis, 7) is None
    assert table_slices.static_rows(True, 7) is None

import gc
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.table import looked_up_table
from tfps_plugin.variables.lookup.table import table_behind

_ROWS = 11
_DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"]


def _table(num_shards: int, row_shape: tuple[int, ...]) -> Any:
    value = np.random.default_rng(0).integers(-99, 99, (_ROWS, *row_shape))
    value = value.astype("float64")
    if num_shards == 1:
        return value, testing.remote_variable(value)
    return value, testing.sharded_variable(value, num_shards)


@given(
    st.integers(1, 4),
    st.sampled_from([(), (3,), (2, 2)]),
    st.lists(st.integers(0, _ROWS - 1), max_size=12),
    st.sampled_from(_DTYPES),
    st.sampled_from([(-1,), (1, -1), (-1, 1, 2)]),
)
def test_rows_and_gradients_are_those_of_numpy(
    num_shards: int,
    row_shape: tuple[int, ...],
    ids: list[int],
    dtype: str,
    id_shape: tuple[int, ...],
) -> None:
    if len(id_shape) == 3:
        ids = ids + ids
    asked = (
        np.array(ids, dtype).reshape(id_shape) if ids else np.array([], dtype)
    )
    value, table = _table(num_shards, row_shape)
    with tf.GradientTape() as tape:
        rows = row_lookup.look_up(table, asked)
        loss = tf.reduce_sum(rows * rows)
    np.testing.assert_array_equal(rows, value[asked.astype("int64")])
    expected = np.zeros_like(value)
    np.add.at(expected, asked.astype("int64"), 2 * value[asked.astype("int64")])
    gradient = tape.gradient(loss, table)
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), expected)
    assert len(set(gradient.indices.numpy())) == len(gradient.indices)


@given(st.lists(st.integers(-_ROWS, _ROWS - 1), max_size=12))
def test_negative_ids_count_from_the_end(ids: list[int]) -> None:
    value, table = _table(3, (2,))
    with tf.GradientTape() as tape:
        rows = row_lookup.look_up(
            table, tf.constant(ids, tf.int32), from_end=True
        )
    np.testing.assert_array_equal(rows, value[np.array(ids, int)])
    distinct = tape.gradient(rows, table).indices.numpy()
    assert sorted(distinct) == sorted({i % _ROWS for i in ids})


@given(st.integers(-40, 40), st.integers(-40, 40), st.booleans())
def test_ids_outside_are_refused_and_named(
    one: int, other: int, from_end: bool
) -> None:
    ids = tf.constant([one, 0, other])
    lowest = -_ROWS if from_end else 0

    def require() -> tf.Tensor:
        return graph_checks.require_inside(ids, _ROWS, "a/b", from_end=from_end)

    if min(one, other) >= lowest and max(one, other) < _ROWS:
        np.testing.assert_array_equal(require(), ids)
        return
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        require()
    message = str(raised.value)
    assert "a/b" in message
    assert "rows 0 to 10" in message
    assert f"[{min(one, 0, other)}]" in message
    assert f"[{max(one, 0, other)}]" in message


def test_a_table_may_have_more_rows_than_an_id_can_count() -> None:
    value = np.arange(1000.0)
    table = testing.sharded_variable(value, 3)
    rows = row_lookup.look_up(
        table, tf.constant([-128, 127], tf.int8), from_end=True
    )
    np.testing.assert_array_equal(rows, value[[-128, 127]])


def test_no_ps_is_asked_before_the_check() -> None:
    """The check is on the CPU, too: a GPU's gather accepts any id."""
    _, table = _table(3, (2,))

    @tf.function
    def look_up(ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(table, ids)

    graph = look_up.get_concrete_function(tf.TensorSpec([None], tf.int32)).graph
    (check,) = [op for op in graph.get_operations() if op.type == "Assert"]
    assert check.device.endswith("/device:CPU:0")
    gathers = [
        op for op in graph.get_operations() if op.type == "ResourceGatherNd"
    ]
    assert len(gathers) == 3
    for gather in gathers:
        assert check in _before(gather)


def _before(operation: tf.Operation) -> set[tf.Operation]:
    found: set[tf.Operation] = set()
    waiting = [operation]
    while waiting:
        op = waiting.pop()
        for earlier in [*op.control_inputs, *(i.op for i in op.inputs)]:
            if earlier not in found:
                found.add(earlier)
                waiting.append(earlier)
    return found


def test_only_tables_are_found() -> None:
    _, table = _table(2, (2,))
    assert table_behind(table)[0] is table  # type: ignore[index]
    for other in (tf.Variable([1.0]), tf.ones([2]), [1.0], None):
        assert table_behind(other) is None


def test_only_a_lookup_marks_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    _, table = _table(2, (2,))
    holder = keras.Variable(np.ones((2, 2), "float32"))
    monkeypatch.setattr(keras_compat, "value_of", lambda variable: table)
    assert table_behind(holder)[0] is table  # type: ignore[index]
    assert not table.was_looked_up
    assert looked_up_table(holder)[0] is table  # type: ignore[index]
    assert table.was_looked_up


@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_traced_functions_do_not_keep_tables(num_shards: int) -> None:
    """TensorFlow keeps the graphs of custom gradients forever."""

    def use_a_table() -> list[weakref.ref[Any]]:
        value = np.ones((10, 2), "float32")
        table = (
            testing.sharded_variable(value, num_shards)
            if num_shards
            else testing.remote_variable(value)
        )

        @tf.function
        def step(ids: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, ids))
                loss += tf.reduce_sum(table.read_value())
            return tf.convert_to_tensor(tape.gradient(loss, table))

        assert step(tf.constant([1, 2])).shape == (10, 2)
        return [weakref.ref(part) for part in (table, *table.shards)]

    parts = use_a_table()
    gc.collect()
    assert [part() for part in parts] == [None] * len(parts)


@pytest.mark.parametrize("num_shards", [0, 2])
def test_loops_can_be_differentiated(num_shards: int) -> None:
    """The tape is around the loop, as in recurrent layers."""
    value = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")

    def gradient_of(table: Any) -> tuple[tf.Tensor, tf.Tensor]:
        def body(i: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            looked_up = tf.gather(table, [1, 2, 1])
            whole = tf.convert_to_tensor(table)
            x = tf.reduce_sum(looked_up * x) + tf.reduce_sum(whole[i] * x)
            return i + 1, x

        @tf.function
        def run() -> tuple[tf.Tensor, tf.Tensor]:
            with tf.GradientTape() as tape:
                _, loss = tf.while_loop(
                    lambda i, x: i < 3, body, [0, tf.constant(1.0)]
                )
            return loss, tf.convert_to_tensor(tape.gradient(loss, table))

        return run()

    table = (
        testing.sharded_variable(value, num_shards)
        if num_shards
        else testing.remote_variable(value)
    )
    expected_loss, expected = gradient_of(tf.Variable(value))
    loss, gradient = gradient_of(table)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)

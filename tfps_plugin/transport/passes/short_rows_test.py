"""Tests of how short rows of variables are gathered."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfps_plugin._compat import tensorflow_graphs as compat
from tfps_plugin.transport import fusion
from tfps_plugin.transport.passes import short_rows
from tfps_plugin.transport.passes.inlining import flatten

_PS = "/job:localhost/replica:0/task:0/device:CPU:0"


def _rows(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    with tf.device(_PS):
        return tf.raw_ops.ResourceGather(
            resource=variable.handle, indices=ids, dtype=variable.dtype
        )


def _fused(
    function: Callable[..., Any], *specs: tf.TensorSpec
) -> tuple[Any, Any, Counter[str]]:
    """A function, what is called in its place, and of which operations."""
    with tf.device(None):
        concrete = tf.function(function).get_concrete_function(*specs)
    fused = fusion.fuse(concrete)
    assert fused is not concrete
    new: Any = getattr(fused, "__wrapped__", fused)
    made = new.graph.get_operations()
    return concrete, fused, Counter(operation.type for operation in made)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 30),
    st.integers(1, 12),
    st.lists(st.integers(0, 10**6), max_size=40),
    st.sampled_from(["float32", "float16", "bfloat16", "int64", "int8"]),
    st.sampled_from(["int32", "int64"]),
)
def test_the_same_rows_come_by_their_coordinates(
    num_rows: int, width: int, ids: list[int], dtype: str, of_ids: str
) -> None:
    value = tf.reshape(tf.range(num_rows * width), [num_rows, width])
    table = tf.Variable(tf.cast(value, dtype))
    concrete, fused, types = _fused(
        lambda ids: _rows(table, ids), tf.TensorSpec([None], of_ids)
    )
    given_ids = tf.constant([n % num_rows for n in ids], of_ids)
    found = fused(given_ids)
    assert found.dtype == table.dtype
    np.testing.assert_array_equal(found, concrete(given_ids))
    np.testing.assert_array_equal(found, tf.gather(table, given_ids))
    assert "ResourceGather" not in types


def test_rows_and_slots_of_an_update_share_coordinates() -> None:
    table = tf.Variable(tf.random.stateless_normal([9, 4], [1, 2]))
    slot = tf.Variable(tf.ones([9, 4]))

    def update(ids: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        before = _rows(table, ids)
        with tf.device(_PS):
            squares = _rows(slot, ids) + tf.square(gradient)
            slot.scatter_update(tf.IndexedSlices(squares, ids))
            rows = _rows(table, ids) - gradient / tf.sqrt(squares)
            table.scatter_update(tf.IndexedSlices(rows, ids))
            return before + _rows(table, ids)

    concrete, fused, types = _fused(
        update, tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, 4])
    )
    assert types["ResourceGatherNd"] == 4
    assert types["ExpandDims"] == 1
    ids = tf.constant([7, 2, 0])
    gradient = tf.random.stateless_normal([3, 4], [3, 4])
    start = table.read_value()
    found = []
    for function in (fused, concrete):
        table.assign(start)
        slot.assign(tf.ones([9, 4]))
        found.append((function(ids, gradient), table + 0.0, slot + 0.0))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # What is gathered behind a change sees it.
    np.testing.assert_array_equal(
        found[0][0], tf.gather(start, ids) + tf.gather(found[0][1], ids)
    )


@pytest.mark.parametrize("ids", [[3], [-1], [0, 2, 10**6]])
def test_a_row_that_is_not_there_is_an_error_as_ever(ids: list[int]) -> None:
    table = tf.Variable(tf.zeros([3, 2]))

    def look_up(ids: tf.Tensor) -> tf.Tensor:
        return _rows(table, ids)

    concrete, fused, types = _fused(look_up, tf.TensorSpec([None], tf.int32))
    assert types["ResourceGatherNd"] == 1
    for function in (concrete, fused):
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            function(tf.constant(ids))
    # Where the program asks for rows.
    assert "short_rows_test.py" in str(raised.value)
    assert "in _rows" in str(raised.value)


@pytest.mark.parametrize(
    ("of_ids", "is_small_enough"), [("int32", False), ("int64", True)]
)
def test_ids_count_the_numbers_of_a_variable(
    of_ids: str, is_small_enough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tf.Variable(tf.zeros([3, 2]))
    # TensorFlow refuses coordinates that cannot.
    monkeypatch.setattr(
        short_rows.compat,
        "shape_of_variable",
        lambda handle: tf.TensorShape([1 << 30, 2]),
    )
    _, _, types = _fused(
        lambda ids: _rows(table, ids), tf.TensorSpec([None], of_ids)
    )
    assert ("ResourceGatherNd" in types) == is_small_enough


def test_coordinates_are_made_before_a_lock_is_taken() -> None:
    table = tf.Variable(tf.zeros([5, 2]))
    mutex = tf.raw_ops.MutexV2(container="", shared_name="short_rows_test")

    def function(ids: tf.Tensor) -> tf.Tensor:
        with tf.device(_PS):
            lock = tf.raw_ops.MutexLock(mutex=mutex)
        with tf.control_dependencies([lock]):
            rows = _rows(table, ids)
        with tf.device(_PS), tf.control_dependencies([rows]):
            tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        return rows

    with tf.device(None):
        concrete = tf.function(function).get_concrete_function(
            tf.TensorSpec([None], tf.int32)
        )
    flat = flatten(concrete.graph)
    flat = short_rows.gather(flat, [one.device for one in flat.operations])
    types = [one.operation.type for one in flat.operations]
    assert types.index("ExpandDims") < types.index("MutexLock")
    assert types.index("MutexLock") < types.index("ResourceGatherNd")


def test_loops_gather_so_too() -> None:
    table = tf.Variable(tf.random.stateless_normal([9, 4], [1, 2]))

    def function(ids_NK: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([4])
        for ids_K in ids_NK:
            total += tf.reduce_sum(_rows(table, ids_K), 0)
        return total

    concrete, fused, _ = _fused(function, tf.TensorSpec([3, 2], tf.int32))
    ids_NK = tf.constant([[7, 2], [0, 0], [8, 1]])
    np.testing.assert_array_equal(fused(ids_NK), concrete(ids_NK))
    inside = compat.operations_within(
        getattr(fused, "__wrapped__", fused).graph
    )
    assert "ResourceGatherNd" in {operation.type for operation in inside}


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        # Long rows; numbers; rows of no number; blocks of rows.
        ((5, 100), tf.TensorSpec([None], tf.int32)),
        ((5,), tf.TensorSpec([None], tf.int32)),
        ((5, 0), tf.TensorSpec([None], tf.int32)),
        ((5, 2, 2), tf.TensorSpec([None], tf.int32)),
        # One row; rows of rows; nobody knows.
        ((5, 2), tf.TensorSpec([], tf.int32)),
        ((5, 2), tf.TensorSpec([None, 3], tf.int32)),
        ((5, 2), tf.TensorSpec(None, tf.int32)),
    ],
)
def test_anything_else_stays(
    shape: tuple[int, ...], spec: tf.TensorSpec
) -> None:
    table = tf.Variable(tf.zeros(shape))
    _, _, types = _fused(lambda ids: _rows(table, ids), spec)
    assert "ResourceGatherNd" not in types


def test_rows_of_the_worker_itself_stay() -> None:
    table = tf.Variable(tf.zeros([5, 2]))

    def function(ids: tf.Tensor) -> tf.Tensor:
        with tf.device(_PS):
            ids = tf.identity(ids)
        return tf.raw_ops.ResourceGather(
            resource=table.handle, indices=ids, dtype=tf.float32
        )

    with tf.device(None):
        concrete = tf.function(function).get_concrete_function(
            tf.TensorSpec([None], tf.int32)
        )
    flat = flatten(concrete.graph)
    for device in ("", "/device:CPU:0", _PS.replace("CPU", "GPU")):
        devices = [device] * len(flat.operations)
        assert short_rows.gather(flat, devices) is flat

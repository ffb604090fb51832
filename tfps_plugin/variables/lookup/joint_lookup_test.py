"""Tests of joint lookups, against rows and gradients computed by NumPy."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.lookup import joint_lookup
from tfps_plugin.variables.step_trace import StepTrace

_ROWS = 11


def _table(value: np.ndarray, num_shards: int) -> Any:
    """Returns a table that is whole on one ps, or sharded."""
    if num_shards == 0:
        return testing.remote_variable(value)
    return testing.sharded_variable(value, num_shards)


def _value(number: int, row_shape: tuple[int, ...], dtype: str) -> np.ndarray:
    # Whole numbers, small enough to be exact in each dtype.
    random = np.random.default_rng(number)
    return random.integers(-9, 10, (_ROWS + number, *row_shape)).astype(dtype)


_ASKED = st.tuples(
    st.integers(0, 3),
    st.sampled_from([(), (1,), (3,), (2, 2), (0,)]),
    st.sampled_from(["float32", "float16", "float64"]),
    st.lists(st.integers(-_ROWS, _ROWS - 1), max_size=9),
    st.sampled_from(["int8", "int32", "int64"]),
)


@given(st.booleans(), st.lists(_ASKED, min_size=1, max_size=4))
def test_rows_and_gradients_are_those_of_numpy(
    traced: bool, asked: list[tuple[Any, ...]]
) -> None:
    values = [_value(n, each[1], each[2]) for n, each in enumerate(asked)]
    tables = [
        _table(value, each[0])
        for value, each in zip(values, asked, strict=True)
    ]
    indices = [np.array(each[3], each[4]) for each in asked]

    def look_up(indices: list[tf.Tensor]) -> Any:
        with tf.GradientTape() as tape:
            rows = joint_lookup.look_up_together(tables, indices, from_end=True)
            loss = [tf.reduce_sum(each * each) for each in rows]
        return rows, tape.gradient(loss, tables)

    rows, gradients = (tf.function(look_up) if traced else look_up)(
        [tf.constant(each) for each in indices]
    )
    for n, value in enumerate(values):
        ids = indices[n].astype("int64")
        assert rows[n].dtype.name == value.dtype.name
        np.testing.assert_array_equal(rows[n], value[ids])
        expected = np.zeros_like(value)
        np.add.at(expected, ids, 2 * value[ids])
        np.testing.assert_array_equal(
            tf.convert_to_tensor(gradients[n]), expected
        )
        distinct = gradients[n].indices.numpy().tolist()
        assert sorted(distinct) == sorted({i % len(value) for i in ids})


def test_ids_keep_their_shape() -> None:
    values = [_value(0, (3,), "float32"), _value(1, (2, 2), "float32")]
    tables = [_table(value, 2) for value in values]

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 2], tf.int32),
            tf.TensorSpec([], tf.int64),
        ]
    )
    def look_up(first: tf.Tensor, second: tf.Tensor) -> list[tf.Tensor]:
        rows = joint_lookup.look_up_together(tables, [first, second])
        assert rows[0].shape.as_list() == [None, 2, 3]
        assert rows[1].shape.as_list() == [2, 2]
        return rows

    rows = look_up([[1, 2], [10, 1]], 4)
    np.testing.assert_array_equal(rows[0], values[0][[[1, 2], [10, 1]]])
    np.testing.assert_array_equal(rows[1], values[1][4])


def test_a_table_may_be_asked_twice() -> None:
    value = _value(0, (2,), "float32")
    table = _table(value, 3)
    with tf.GradientTape() as tape:
        first, second = joint_lookup.look_up_together(
            [table, table], [[1, 5], [5, 10]]
        )
        loss = tf.reduce_sum(first) + 3 * tf.reduce_sum(second)
    expected = np.zeros_like(value)
    expected[[1, 5, 10]] = [[1, 1], [4, 4], [3, 3]]
    np.testing.assert_array_equal(
        tf.convert_to_tensor(tape.gradient(loss, table)), expected
    )


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("num_shards", [0, 2])
def test_tables_whose_rows_are_not_used_have_no_gradient(
    num_shards: int, traced: bool
) -> None:
    """A gradient of zeros would be an update of moments and counters."""
    tables = [_table(_value(n, (2,), "float32"), num_shards) for n in range(2)]
    found = []

    def look_up() -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows, _ = joint_lookup.look_up_together(tables, [[1], [2]])
        found.extend(tape.gradient(rows, tables))
        return rows

    (tf.function(look_up) if traced else look_up)()
    assert found[0] is not None
    assert found[1] is None


def test_the_function_being_traced_knows_the_rows() -> None:
    values = [_value(n, (2,), "float32") for n in range(2)]
    tables = [_table(value, 2) for value in values]

    @tf.function
    def look_up() -> Any:
        joint_lookup.look_up_together(tables, [[3, 3, 7], [2]])
        return [StepTrace.current().lookups_of(table) for table in tables]

    (((ids, rows),), ((other_ids, other_rows),)) = look_up()
    np.testing.assert_array_equal(ids, [3, 7])
    np.testing.assert_array_equal(rows, values[0][[3, 7]])
    np.testing.assert_array_equal(other_ids, [2])
    np.testing.assert_array_equal(other_rows, values[1][[2]])


def _traced(tables: list[Any]) -> tf.Graph:
    @tf.function
    def look_up(indices: list[tf.Tensor]) -> list[tf.Tensor]:
        return joint_lookup.look_up_together(tables, indices)

    spec = [tf.TensorSpec([None], tf.int64) for _ in tables]
    return look_up.get_concrete_function(spec).graph


def test_each_ps_gets_one_tensor_and_sends_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = [
        _table(_value(n, (width,), "float32"), num_shards)
        for n, (width, num_shards) in enumerate([(2, 4), (3, 2), (5, 1)])
    ]
    # Two ps; one has two shards of the first table, and all of the last one.
    ps_of = {
        id(shard): number % 2
        for table in tables
        for number, shard in enumerate(table.shards)
    }
    monkeypatch.setattr(
        RemoteVariable,
        "device",
        property(
            lambda shard: (
                f"/job:ps/replica:0/task:{ps_of[id(shard)]}/device:CPU:0"
            )
        ),
    )
    to_ps, from_ps = set(), set()
    for op in _traced(tables).get_operations():
        for tensor in op.inputs:
            source, target = _ps(tensor.op), _ps(op)
            if source == target or tensor.dtype == tf.resource:
                continue
            if target:
                to_ps.add((tensor.name, target))
            if source:
                from_ps.add((tensor.name, source))
    assert sorted(ps for _, ps in to_ps) == ["0", "1"]
    assert sorted(ps for _, ps in from_ps) == ["0", "1"]


def _ps(op: tf.Operation) -> str | None:
    spec = tf.DeviceSpec.from_string(op.device)
    return str(spec.task) if spec.job == "ps" else None


@pytest.mark.parametrize(
    ("num_rows", "expected"), [(1 << 31, "int64"), ((1 << 31) - 1, "int32")]
)
def test_ids_travel_in_the_smallest_dtype_that_holds_them(
    num_rows: int, expected: str
) -> None:
    shard = testing.remote_variable(np.ones([3, 2], "float32"))
    asked = [[], [num_rows - 1, 0], [2]]
    parts = [
        joint_lookup._Part(shard, rows, shard.dtype, tf.constant(ids, tf.int64))
        for rows, ids in zip([3, num_rows, 3], asked, strict=True)
    ]
    message, _ = joint_lookup._pack(parts)
    assert message.dtype.name == expected
    arrived = joint_lookup._unpack(message, len(parts))
    assert [ids.numpy().tolist() for ids in arrived] == asked


def test_no_ps_is_asked_before_all_ids_are_checked() -> None:
    graph = _traced([_table(_value(n, (2,), "float32"), n) for n in (1, 3)])
    operations = graph.get_operations()
    checks = [op for op in operations if op.type == "Assert"]
    gathers = [op for op in operations if op.type == "ResourceGatherNd"]
    assert len(checks) == 2
    assert len(gathers) == 4
    for gather in gathers:
        assert set(checks) <= _before(gather)


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


def test_ids_outside_are_refused_and_named() -> None:
    tables = [_table(_value(n, (2,), "float32"), 2) for n in range(2)]
    tables[1].path = "embed/wide"
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"embed/wide.*rows 0 to 11.*12"
    ):
        joint_lookup.look_up_together(tables, [[1], [12]])


def test_traced_functions_do_not_keep_tables() -> None:
    """TensorFlow keeps the graphs of custom gradients forever."""

    def use_tables() -> list[weakref.ref[Any]]:
        tables = [_table(np.ones((9, 2), "float32"), n) for n in (0, 3)]

        @tf.function
        def step(ids: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                rows = joint_lookup.look_up_together(tables, [ids, ids])
            return [
                tf.convert_to_tensor(g) for g in tape.gradient(rows, tables)
            ]

        assert step(tf.constant([1, 2]))[1].shape == (9, 2)
        return [
            weakref.ref(part)
            for table in tables
            for part in (table, *table.shards)
        ]

    parts = use_tables()
    gc.collect()
    assert [part() for part in parts] == [None] * len(parts)

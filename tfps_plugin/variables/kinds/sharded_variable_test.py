from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin import errors
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.sharding.layout import RowLayout

_ROWS = 23
_VALUE = np.random.default_rng(0).normal(size=(_ROWS, 3)).astype("float32")
_UPDATE = np.random.default_rng(1).normal(size=(_ROWS, 3)).astype("float32")


def _pair(num_shards: int = 3) -> tuple[tf.Variable, ShardedVariable]:
    """Returns a plain variable as the reference, and a table of its value."""
    return tf.Variable(_VALUE), testing.sharded_variable(_VALUE, num_shards)


def _dense(gradient: Any) -> np.ndarray:
    return tf.convert_to_tensor(gradient).numpy()


@given(st.lists(st.integers(0, _ROWS - 1), max_size=30), st.integers(1, _ROWS))
def test_rows_and_their_gradient_are_those_of_a_variable(
    ids: list[int], num_shards: int
) -> None:
    plain, table = _pair(num_shards)
    ids = tf.constant(ids, tf.int64)

    def rows_and_gradient(variable: Any) -> tuple[np.ndarray, Any]:
        with tf.GradientTape() as tape:
            rows = tf.gather(variable, ids)
            loss = tf.reduce_sum(rows * rows)
        return rows.numpy(), tape.gradient(loss, variable)

    rows, gradient = rows_and_gradient(plain)
    table_rows, table_gradient = rows_and_gradient(table)
    np.testing.assert_array_equal(table_rows, rows)
    np.testing.assert_allclose(
        _dense(table_gradient), _dense(gradient), rtol=1e-6
    )
    distinct = table_gradient.indices.numpy().tolist()
    assert len(distinct) == len(set(distinct))


@given(
    st.one_of(st.none(), st.integers(-30, 30)),
    st.one_of(st.none(), st.integers(-30, 30)),
    st.one_of(st.none(), st.sampled_from([1, 2, -1])),
)
def test_slices_are_those_of_a_variable(
    start: int | None, stop: int | None, step: int | None
) -> None:
    plain, table = _pair()
    key = slice(start, stop, step)
    np.testing.assert_array_equal(table[key], plain[key])
    np.testing.assert_array_equal(table[key, 1:], plain[key, 1:])


_LOSSES: dict[str, Callable[[Any], tf.Tensor]] = {
    "gather": lambda v: tf.reduce_sum(tf.gather(v, [[1, 22], [1, 9]]) ** 2),
    "dense": lambda v: tf.reduce_sum(tf.nn.tanh(v) * _UPDATE),
    "slice": lambda v: tf.reduce_sum(v[5:17] ** 2) + tf.reduce_sum(v[3]),
    "mixed": lambda v: (
        tf.reduce_sum(v[:2]) + tf.reduce_sum(tf.gather(v, [0, 0, 22]) * 2.0)
    ),
}


@pytest.mark.parametrize("loss", _LOSSES.values(), ids=_LOSSES.keys())
@pytest.mark.parametrize("where", ["eager", "function", "tape outside", "both"])
def test_one_gradient_wherever_the_tape_is(
    loss: Callable[[Any], tf.Tensor], where: str
) -> None:
    plain, table = _pair()

    def gradient(variable: Any) -> Any:
        inner = tf.function(lambda: loss(variable))
        forward = (
            inner
            if where in ("tape outside", "both")
            else (lambda: loss(variable))
        )

        def differentiate() -> Any:
            with tf.GradientTape() as tape:
                y = forward()
            return tape.gradient(y, variable)

        if where in ("function", "both"):
            return tf.function(differentiate)()
        return differentiate()

    np.testing.assert_allclose(
        _dense(gradient(table)), _dense(gradient(plain)), rtol=1e-6
    )


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("kind", ["array", "tensor", "table", "function"])
def test_assignments_are_those_of_a_variable(method: str, kind: str) -> None:
    plain, table = _pair()
    value = {
        "array": _UPDATE,
        "tensor": tf.constant(_UPDATE),
        "table": testing.sharded_variable(_UPDATE, 3),
        "function": tf.constant(_UPDATE),
    }[kind]
    getattr(plain, method)(_UPDATE)
    if kind == "function":
        tf.function(lambda: getattr(table, method)(value).name)()
    else:
        assert getattr(table, method)(value) is table
    np.testing.assert_array_equal(table.numpy(), plain.numpy())


@pytest.mark.parametrize(
    "method", ["scatter_update", "scatter_add", "scatter_sub"]
)
def test_scatters_are_those_of_a_variable(method: str) -> None:
    plain, table = _pair()
    rows = tf.IndexedSlices(tf.constant(_UPDATE[:3]), tf.constant([22, 0, 8]))
    getattr(plain, method)(rows)
    getattr(table, method)(rows)
    np.testing.assert_array_equal(table.numpy(), plain.numpy())


def test_arithmetic_and_conversion() -> None:
    plain, table = _pair()
    for calculate in (
        lambda v: v + 1.0,
        lambda v: 2.0 - v,
        lambda v: v * v,
        lambda v: -v,
        lambda v: v @ tf.ones([3, 2]),
        lambda v: v > 0.0,
        lambda v: tf.convert_to_tensor(v),
        lambda v: tf.cast(v, tf.float64),
        lambda v: np.asarray(v, "float64"),
    ):
        np.testing.assert_array_equal(calculate(table), calculate(plain))
    assert len(table) == _ROWS
    assert (table.shape, table.dtype) == (plain.shape, plain.dtype)
    assert {table.ref(): 1}[table.ref()] == 1


def test_large_values_pass_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tfps_plugin.variables.saving.shard_reader.BLOCK_BYTES", 50
    )
    _, table = _pair()
    table.assign(_UPDATE)
    np.testing.assert_array_equal(table.numpy(), _UPDATE)


def test_a_wrong_shape_is_refused() -> None:
    _, table = _pair()
    for value in (np.zeros((2, 3), "float32"), tf.zeros([_ROWS, 4])):
        with pytest.raises(ValueError, match=r"own shape \(23, 3\)"):
            table.assign(value)


@pytest.mark.parametrize("bad", [-1, _ROWS])
def test_an_id_outside_the_table_is_an_error(bad: int) -> None:
    _, table = _pair()
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows 0 to 22"):
        tf.gather(table, [0, bad])


def test_the_shards_are_listed_in_order() -> None:
    _, table = _pair()
    assert table.layout == RowLayout.even(_ROWS, 3)
    np.testing.assert_array_equal(
        np.concatenate([shard.numpy() for shard in table.variables]), _VALUE
    )


def test_scatter_is_refused_inside_an_update() -> None:
    from tfps_plugin.variables.step_trace import StepTrace
    from tfps_plugin.variables.updates import views

    _, table = _pair()
    seen = {table._unique_id: views.ShardView(table.variables[0])}
    rows = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]))
    with (
        StepTrace.current().viewing(seen),
        pytest.raises(errors.UnsupportedError, match="assign_add"),
    ):
        table.scatter_add(rows)


def test_nothing_is_captured_by_value() -> None:
    _, table = _pair()

    @tf.function
    def use() -> tf.Tensor:
        table.scatter_add(tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0])))
        return tf.gather(table, [1, 2]) + table[0:2] + table.read_value()[:2]

    assert not use.get_concrete_function().graph.captures


def test_it_is_freed_with_its_last_owner() -> None:
    import gc
    import weakref

    _, table = _pair()
    gone = weakref.ref(table)
    del table
    gc.collect()
    assert gone() is None


def test_keras_holds_it_in_one_variable() -> None:
    _, table = _pair()
    with tf.variable_creator_scope(lambda next_creator, **_: table):
        variable = keras.Variable(_VALUE, name="table")
    assert variable.value is table
    np.testing.assert_array_equal(variable.numpy(), _VALUE)
    np.testing.assert_array_equal(variable + 1.0, _VALUE + 1.0)
    variable.assign(_UPDATE)
    np.testing.assert_array_equal(table.numpy(), _UPDATE)

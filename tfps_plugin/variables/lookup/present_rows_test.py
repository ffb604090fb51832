"""Tests of present rows, their gradients, and leftovers of traced steps."""

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup import present_rows
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows


class _Tripled:
    """Steps that have made every row three times as large."""

    def caught_up(
        self, stored_UD: tf.Tensor, ids_U: tf.Tensor | None
    ) -> tf.Tensor:
        return 3 * stored_UD


class _Unchanged:
    def caught_up(
        self, stored_UD: tf.Tensor, ids_U: tf.Tensor | None
    ) -> tf.Tensor:
        return stored_UD


def _table(steps: Any) -> Any:
    table = testing.remote_variable([[0.1], [0.7], [np.inf]])
    table.unseen_steps = steps
    return table


def _traced_by_itself(function: Any) -> Any:
    """Traces a function, so that a tape outside differentiates its graph."""
    return tf.function(function)


def _as_it_is(function: Any) -> Any:
    return function


@pytest.mark.parametrize("inner", [_as_it_is, _traced_by_itself])
@pytest.mark.parametrize("outer", [_as_it_is, _traced_by_itself])
@pytest.mark.parametrize(("steps", "factor"), [(_Tripled, 3), (_Unchanged, 1)])
def test_values_are_present_and_gradients_are_those_of_stored_rows(
    inner: Any, outer: Any, steps: Any, factor: int
) -> None:
    table = _table(steps())

    @inner
    def present(stored_UD: tf.Tensor) -> tf.Tensor:
        return present_rows.present_value(table, stored_UD)

    @outer
    def step(stored_UD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(stored_UD)
            present_UD = present(stored_UD)
            loss = tf.reduce_sum(present_UD * [[1.0], [2.0], [4.0]])
        return present_UD, tape.gradient(loss, stored_UD)

    stored_UD = tf.constant([[0.1], [0.7], [np.inf]])
    present_UD, gradient_UD = step(stored_UD)
    np.testing.assert_array_equal(present_UD, factor * stored_UD)
    np.testing.assert_array_equal(gradient_UD, [[1.0], [2.0], [4.0]])


def test_a_traced_step_ends_with_its_function() -> None:
    table = _table(_Tripled())
    graphs = []
    for _ in range(5):

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                rows_UD = present_rows.read(table)
                tape.watch(rows_UD)
                loss = tf.reduce_sum(present_rows.present_value(table, rows_UD))
            return tape.gradient(loss, rows_UD)

        graphs.append(weakref.ref(step.get_concrete_function().graph))
        np.testing.assert_array_equal(step(), np.ones([3, 1]))
    del step
    gc.collect()
    assert [graph() for graph in graphs if graph() is not None] == []


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 30),
    st.integers(1, 12),
    st.lists(st.integers(0, 10**6), max_size=40),
    st.sampled_from(["float32", "float16", "bfloat16", "int64", "int8"]),
    st.sampled_from(["int32", "int64"]),
)
def test_short_rows_are_gathered_by_coordinates(
    num_rows: int, width: int, ids: list[int], dtype: str, of_ids: str
) -> None:
    value = tf.reshape(tf.range(num_rows * width), [num_rows, width])
    table = testing.remote_variable(tf.cast(value, dtype))
    ids_U = tf.constant([n % num_rows for n in ids], of_ids)
    found_UD = present_rows.gather_stored(table, ids_U)
    assert found_UD.dtype == table.dtype
    np.testing.assert_array_equal(
        found_UD, tf.gather(table.read_value(), ids_U)
    )


@pytest.mark.parametrize(
    ("shape", "operation"),
    [
        ((5, 64), "ResourceGatherNd"),
        # Long rows; scalars as rows; empty rows; blocks of rows.
        ((5, 65), "ResourceGather"),
        ((5,), "ResourceGather"),
        ((5, 0), "ResourceGather"),
        ((5, 2, 2), "ResourceGather"),
    ],
)
def test_only_short_rows_are_gathered_so(
    shape: tuple[int, ...], operation: str
) -> None:
    table = testing.remote_variable(tf.zeros(shape))

    @tf.function
    def look_up(ids_U: tf.Tensor) -> tf.Tensor:
        return present_rows.gather_stored(table, ids_U)

    spec = tf.TensorSpec([None], tf.int32)
    graph = look_up.get_concrete_function(spec).graph
    types = {one.type for one in graph.get_operations()}
    assert {t for t in types if t.startswith("ResourceGather")} == {operation}


def test_ids_have_to_count_the_elements_of_a_variable() -> None:
    # TensorFlow refuses ids of a dtype that cannot count the elements.
    table = SimpleNamespace(shape=tf.TensorShape([1 << 30, 2]), dtype=tf.int8)
    assert not present_rows._has_short_rows(table, tf.int32)
    assert present_rows._has_short_rows(table, tf.int64)


@pytest.mark.parametrize("ids", [[3], [-1], [0, 2, 10**6]])
def test_a_row_that_is_not_there_is_an_error(ids: list[int]) -> None:
    table = testing.remote_variable(tf.zeros([3, 2]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        present_rows.gather_stored(table, tf.constant(ids))


@pytest.mark.parametrize("width", [4, 100])
@pytest.mark.parametrize("inner", [_as_it_is, _traced_by_itself])
@pytest.mark.parametrize("outer", [_as_it_is, _traced_by_itself])
def test_gradients_of_lookups_are_summed(
    inner: Any, outer: Any, width: int
) -> None:
    table = testing.remote_variable(tf.ones([9, width]))

    @inner
    def look_up(ids: tf.Tensor) -> tf.Tensor:
        return row_lookup.look_up(table, ids)

    @outer
    def step(ids: tf.Tensor) -> tf.IndexedSlices:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(look_up(ids) * [[1.0], [2.0], [4.0]])
        slices = tape.gradient(loss, table)
        if inner is _as_it_is:
            assert isinstance(slices, DistinctRows)
        return tf.IndexedSlices(
            slices.values, slices.indices, slices.dense_shape
        )

    slices = step(tf.constant([4, 2, 4]))
    assert slices.indices.numpy().tolist() == [4, 2]
    assert slices.dense_shape.numpy().tolist() == [9, width]
    np.testing.assert_array_equal(slices.values[:, 0], [5.0, 2.0])

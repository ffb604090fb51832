"""Tests of the scatter methods, against those of a tf.Variable."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates import views

_VALUE = np.arange(1.0, 22.0, dtype="float32").reshape(7, 3)
_METHODS = ["add", "sub", "mul", "div", "max", "min", "update"]


def _pair(kind: str) -> tuple[tf.Variable, Any]:
    make = {
        "sharded": lambda: testing.sharded_variable(_VALUE, 3),
        "whole": lambda: testing.remote_variable(_VALUE),
    }[kind]
    return tf.Variable(_VALUE), make()


@pytest.mark.parametrize("method", _METHODS)
@pytest.mark.parametrize("kind", ["sharded", "whole"])
def test_rows_may_be_numbers_for_all_or_in_any_shape(
    kind: str, method: str
) -> None:
    for values, ids in (
        (tf.constant(2.0), [5, 0]),
        (tf.fill([2, 2, 3], 2.5), [[1, 6], [4, 0]]),
        (tf.zeros([0, 3]), tf.zeros([0], tf.int64)),
    ):
        plain, mine = _pair(kind)
        rows = tf.IndexedSlices(values, tf.convert_to_tensor(ids))
        for variable in (plain, mine):
            getattr(variable, f"scatter_{method}")(rows)
        np.testing.assert_allclose(mine.numpy(), plain.numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["sharded", "whole"])
def test_places_may_be_slices(kind: str) -> None:
    for indices, updates in (
        ([[6], [2]], tf.ones([2, 3])),
        ([[[6, 1]], [[2, 0]]], tf.ones([2, 1])),
    ):
        plain, mine = _pair(kind)
        for variable in (plain, mine):
            variable.scatter_nd_add(indices, updates)
        np.testing.assert_allclose(mine.numpy(), plain.numpy(), rtol=1e-6)
        np.testing.assert_array_equal(
            mine.gather_nd(indices), plain.gather_nd(indices)
        )


@pytest.mark.parametrize("row", [-1, 7])
@pytest.mark.parametrize("kind", ["sharded", "whole"])
def test_a_row_outside_is_an_error_and_changes_nothing(
    kind: str, row: int
) -> None:
    _, mine = _pair(kind)
    rows = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([row, row]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(row)):
        mine.scatter_add(rows)
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(row)):
        mine.scatter_nd_add([[0, 0], [row, 0]], [1.0, 1.0])
    if kind == "sharded":  # a whole one does what TensorFlow does
        np.testing.assert_array_equal(mine.numpy(), _VALUE)


@pytest.mark.parametrize("kind", ["sharded", "whole"])
def test_only_slices_are_rows(kind: str) -> None:
    _, mine = _pair(kind)
    for method in (*_METHODS[:-1], "update"):
        with pytest.raises(TypeError, match="IndexedSlices"):
            getattr(mine, f"scatter_{method}")(tf.ones([7, 3]))
    with pytest.raises(TypeError, match="IndexedSlices"):
        mine.batch_scatter_update(tf.ones([7, 3]))


@pytest.mark.parametrize("kind", ["sharded", "whole"])
def test_inside_an_update_only_its_rows_are_seen(kind: str) -> None:
    _, mine = _pair(kind)
    shard = mine.variables[1] if kind == "sharded" else mine
    seen = {mine._unique_id: views.RowsView(shard, tf.constant([1, 0]))}
    with StepTrace.current().viewing(seen):
        first = mine.sparse_read([0])
        place = mine.gather_nd([[1, 2]])
        for change in (
            lambda: mine.scatter_add(tf.IndexedSlices(tf.ones([1, 3]), [0])),
            lambda: mine.scatter_nd_add([[0, 0]], [1.0]),
        ):
            with pytest.raises(errors.UnsupportedError, match="assign_add"):
                change()
    rows = shard.numpy()[[1, 0]]
    np.testing.assert_array_equal(first, rows[:1])
    np.testing.assert_array_equal(place, rows[1:, 2])


@pytest.mark.parametrize("method", ["scatter_max", "scatter_update"])
def test_on_the_chief_the_copies_of_lanes_are_part_of_it(method: str) -> None:
    state = WorkerLocalVariable(tf.zeros([2, 1]), "state")
    for index in range(2):
        with testing.lane(index):
            state.assign_add([[1.0], [2.0]])
    np.testing.assert_array_equal(state.gather_nd([[1, 0]]), [4.0])
    np.testing.assert_array_equal(state.sparse_read([0]), [[2.0]])
    getattr(state, method)(tf.IndexedSlices(tf.constant([[3.0]]), [1]))
    right = {"scatter_max": 4.0, "scatter_update": 3.0}[method]
    np.testing.assert_array_equal(state.numpy(), [[2.0], [right]])

"""Present rows, their gradients, and what is left of traced steps."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup import present_rows


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
    """A tape outside then has TensorFlow differentiate the graph."""
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

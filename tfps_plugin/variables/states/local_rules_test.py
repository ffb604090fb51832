"""Tests of rules found in the operations that assign metric states."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.states import local_rules
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.states.merge_rule import MergeRule

_X = tf.TensorSpec([], tf.float32)
Update = Callable[[Any, Any], Any]


def _rule(
    update: Update, state: WorkerLocalVariable, *others: Any
) -> MergeRule | str | None:
    """Returns the rule of a state; `unused` if it does not need one."""
    concrete = tf.function(
        lambda x: update(state, x), autograph=False
    ).get_concrete_function(_X)
    flow = Flow(concrete.graph)
    return local_rules.find(flow, [state, *others]).get(id(state), "unused")


def _state(value: Any = 0.0) -> WorkerLocalVariable:
    return WorkerLocalVariable(tf.constant(value), "state")


_COND: dict[str, Update] = {
    "sum": lambda v, x: v.assign(
        tf.cond(x > 0.0, lambda: v + x, lambda: v + 0.0)
    ),
    "sum or nothing": lambda v, x: v.assign(
        tf.cond(x > 0.0, lambda: v + x, v.read_value)
    ),
    "in a branch": lambda v, x: tf.cond(
        x > 0.0,
        lambda: v.assign_add(x, read_value=False) or tf.constant(0),
        lambda: tf.constant(0),
    ),
}


def _in_branch(v: Any, x: Any, change: Callable[[], Any]) -> None:
    def branch() -> Any:
        change()
        return tf.constant(0)

    tf.cond(x > 0.0, branch, lambda: tf.constant(0))


def _in_loop(v: Any, x: Any, change: Callable[[Any], Any]) -> None:
    def body(i: Any) -> Any:
        change(tf.cast(i, tf.float32))
        return [i + 1]

    tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])


@tf.function
def _added(v: Any, x: Any) -> Any:
    return v + x


@pytest.mark.parametrize(
    "update",
    [
        lambda v, x: v.assign_add(x),
        lambda v, x: v.assign_sub(x),
        lambda v, x: v.assign(v + x),
        lambda v, x: v.assign(x + v),
        lambda v, x: v.assign(v - x),
        lambda v, x: v.assign(v + x + 2.0 * x),
        lambda v, x: v.assign(keras.ops.add(v, x)),
        lambda v, x: v.assign(tf.add_n([x, tf.convert_to_tensor(v)])),
        lambda v, x: v.assign(tf.reduce_sum(tf.stack([v, x]))),
        lambda v, x: v.assign(tf.where(x > 0.0, v + x, v)),
        lambda v, x: v.assign(_added(v.read_value(), x)),
        lambda v, x: v.assign(tf.cond(x > 0.0, lambda: v + x, v.read_value)),
        lambda v, x: _in_branch(v, x, lambda: v.assign_add(x)),
        lambda v, x: _in_branch(v, x, lambda: v.assign(v + x)),
        lambda v, x: _in_loop(v, x, lambda i: v.assign(v + i)),
        lambda v, x: (v.assign_add(x), v.assign(v + 1.0)),
    ],
)
def test_sums_are_known(update: Update) -> None:
    assert _rule(update, _state()) is MergeRule.SUM


@pytest.mark.parametrize(
    "update",
    [
        lambda v, x: v.assign(tf.maximum(v, x)),
        lambda v, x: v.assign(tf.math.maximum(x, v)),
        lambda v, x: v.assign(keras.ops.maximum(v, x)),
        lambda v, x: v.assign(tf.reduce_max(tf.stack([v, x, 2.0 * x]))),
        lambda v, x: v.assign(keras.ops.max(keras.ops.stack([x, v]))),
        lambda v, x: v.assign(
            tf.reduce_max(tf.concat([[x, x], tf.reshape(v, [1])], 0))
        ),
        lambda v, x: v.assign(tf.maximum(tf.maximum(v, x), 3.0)),
        lambda v, x: v.assign(
            tf.cond(x > 0.0, lambda: tf.maximum(v, x), v.read_value)
        ),
    ],
)
def test_maxima_are_known(update: Update) -> None:
    assert _rule(update, _state()) is MergeRule.MAX


@pytest.mark.parametrize(
    "update",
    [
        lambda v, x: v.assign(tf.minimum(v, x)),
        lambda v, x: v.assign(keras.ops.minimum(x, v)),
        lambda v, x: v.assign(tf.reduce_min(tf.stack([v, x]))),
    ],
)
def test_minima_are_known(update: Update) -> None:
    assert _rule(update, _state()) is MergeRule.MIN


@pytest.mark.parametrize(
    ("update", "rule"),
    [
        (lambda v, x: v.assign(v | (x > 0.0)), MergeRule.MAX),
        (lambda v, x: v.assign(tf.logical_and(v, x > 0.0)), MergeRule.MIN),
        (
            lambda v, x: v.assign(tf.reduce_any(tf.stack([v, x > 0.0]))),
            MergeRule.MAX,
        ),
        (
            lambda v, x: v.assign(tf.reduce_all(tf.stack([v, x > 0.0]))),
            MergeRule.MIN,
        ),
        (lambda v, x: v.assign(v ^ (x > 0.0)), None),
    ],
)
def test_booleans(update: Update, rule: MergeRule) -> None:
    assert _rule(update, _state(False)) is rule


@pytest.mark.parametrize(
    ("update", "rule"),
    [
        (lambda v, x: v.assign(tf.maximum(v, [x, x])), MergeRule.MAX),
        (
            lambda v, x: v.assign(tf.reduce_max(tf.stack([v, [x, x]]), 0)),
            MergeRule.MAX,
        ),
        (
            lambda v, x: v.assign(
                tf.tensor_scatter_nd_add(v, [[0]], tf.reshape(x, [1]))
            ),
            MergeRule.SUM,
        ),
        (
            lambda v, x: v.assign(
                tf.tensor_scatter_nd_max(v, [[0]], tf.reshape(x, [1]))
            ),
            MergeRule.MAX,
        ),
        # A reduction along the state's own axis mixes its elements.
        (
            lambda v, x: v.assign(tf.reduce_max(tf.stack([v, [x, x]]), 1)),
            None,
        ),
        (lambda v, x: v.assign(tf.reverse(v, [0]) + x), None),
        (lambda v, x: v.assign(tf.concat([v[:1] + x, v[1:]], 0)), None),
    ],
)
def test_vectors(update: Update, rule: MergeRule) -> None:
    assert _rule(update, _state([0.0, 1.0])) is rule


@pytest.mark.parametrize(
    "update",
    [
        lambda v, x: v.assign(x),
        lambda v, x: (v.assign(0.0), v.assign_add(x)),
        lambda v, x: (v.assign_add(x), v.assign(3.0 * x)),
    ],
)
def test_what_the_batch_alone_decides_is_the_last(update: Update) -> None:
    assert _rule(update, _state()) is MergeRule.LAST


@pytest.mark.parametrize(
    "update",
    [
        lambda v, x: v.assign(0.9 * v + 0.1 * x),
        lambda v, x: v.assign_add(0.1 * (x - v)),
        lambda v, x: v.assign(v * x),
        lambda v, x: v.assign(v + v),
        lambda v, x: v.assign(v + tf.maximum(v, x)),
        lambda v, x: v.assign(tf.maximum(v, x) + x),
        lambda v, x: v.assign(x - v),
        lambda v, x: v.assign(tf.where(x > v, x, v)),
        lambda v, x: v.assign(tf.cond(x > v, lambda: v + x, v.read_value)),
        lambda v, x: v.assign(tf.cond(x > 0.0, lambda: v + x, lambda: x)),
        lambda v, x: _in_branch(v, x, lambda: v.assign(x)),
        lambda v, x: _in_loop(v, x, lambda i: v.assign(i)),
        lambda v, x: _in_loop(v, x, lambda i: v.assign(2.0 * v)),
        lambda v, x: (v.assign_add(x), v.assign(tf.maximum(v, x))),
    ],
)
def test_everything_else_has_no_rule(update: Update) -> None:
    assert _rule(update, _state()) is None


def test_whole_numbers_are_not_added_up_through_fractions() -> None:
    count = _state(0)
    assert _rule(lambda v, x: v.assign_add(2), count) is MergeRule.SUM
    assert (
        _rule(
            lambda v, x: v.assign(tf.cast(tf.cast(v, tf.float32) + x, "int32")),
            count,
        )
        is None
    )


def test_what_depends_on_another_copy_has_no_rule() -> None:
    count, mean = _state(), _state()

    def welford(mean: Any, x: Any) -> None:
        count.assign_add(1.0)
        mean.assign_add((x - 1.0) / count)

    assert _rule(welford, mean, count) is None
    concrete = tf.function(lambda x: welford(mean, x)).get_concrete_function(_X)
    rules = local_rules.find(Flow(concrete.graph), [mean, count])
    assert rules == {id(mean): None, id(count): None}


def test_a_state_that_no_step_assigns_is_a_constant() -> None:
    scale, total = _state(2.0), _state()

    def update(v: Any, x: Any) -> None:
        total.assign_add(x * v)

    assert _rule(update, scale, total) is MergeRule.CONSTANT
    concrete = tf.function(lambda x: update(scale, x)).get_concrete_function(_X)
    rules = local_rules.find(Flow(concrete.graph), [scale, total])
    assert rules[id(total)] is MergeRule.SUM


def test_what_is_only_returned_needs_no_rule() -> None:
    assert _rule(lambda v, x: v + x, _state()) == "unused"


def test_a_state_that_weights_depend_on_has_no_rule() -> None:
    weight = testing.remote_variable(1.0)

    def update(v: Any, x: Any) -> None:
        v.assign_add(x)
        weight.assign_sub(x * v)

    assert _rule(update, _state()) is None

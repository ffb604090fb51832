from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_resident import Residents
from tfps_plugin.variables.per_worker.worker_tables import WorkerTable
from tfps_plugin.variables.states.merge_rule import MergeRule


@contextmanager
def _on_lane(lane: int, generation: int = 0) -> Iterator[None]:
    """Runs as the first or second lane of a worker: 0, 1 | 2, 3 | ..."""
    context = DispatchContext(lane // 2, lane, generation, testing.LOCAL_DEVICE)
    with dispatch_context.dispatching(context):
        yield


def _sum(value: Any) -> WorkerLocalVariable:
    """Returns a state that the program has declared a sum."""
    return WorkerLocalVariable(
        tf.convert_to_tensor(value), "state", rule_is_given=True
    )


def test_what_lanes_add_is_summed_on_the_chief() -> None:
    state = WorkerLocalVariable(tf.constant([1.0, 2.0]), "state")

    @tf.function
    def add(x: tf.Tensor) -> None:
        # Read, then assign, as Keras's confusion matrices do.
        state.assign(state + x)

    for lane in range(4):
        with _on_lane(lane):
            add(tf.constant([10.0, 100.0]))
            add(tf.constant([10.0, 100.0]))
    np.testing.assert_array_equal(state.numpy(), [81.0, 802.0])
    np.testing.assert_array_equal(state + 0.0, [81.0, 802.0])


def test_a_lane_sees_its_own_copy_alone() -> None:
    state = WorkerLocalVariable(tf.constant(5), "state")
    read = tf.function(lambda: state.read_value())
    with _on_lane(0):
        state.assign_add(3)
        assert read().numpy() == state.numpy() == 3
    with _on_lane(1):
        assert read().numpy() == 0
    assert state.numpy() == read().numpy() == 8
    with _on_lane(0):
        assert read().numpy() == 0, "what it had is with the chief"


def test_a_function_of_the_chief_has_what_all_have() -> None:
    state = WorkerLocalVariable(tf.constant(1.0), "state")
    add = tf.function(lambda x: state.assign_add(x))
    reset = tf.function(lambda: state.assign(0.0))
    double = tf.function(lambda: 2.0 * state)
    for round_ in range(2):
        for lane in range(3):
            with _on_lane(lane):
                add(tf.constant(2.0))
        assert double().numpy() == 2.0 * state.numpy() == 14.0 - 2.0 * round_
        add(tf.constant(1.0))
        assert state.numpy() == 8.0 - round_
        reset()
        assert state.numpy() == 0.0


def test_the_chief_assigns_for_all() -> None:
    state = WorkerLocalVariable(tf.constant(5), "state")
    with _on_lane(0):
        state.assign_add(3)
    state.assign(0)
    assert state.numpy() == 0
    state.assign_add(2)
    with _on_lane(0):
        state.assign_add(4)
    assert state.numpy() == 6


def test_a_lost_worker_takes_its_share_along() -> None:
    state = WorkerLocalVariable(tf.constant(0), "state")
    for lane in range(4):
        with _on_lane(lane):
            state.assign_add(1)
    connection.present().part(Residents).forget_worker(0)
    assert state.numpy() == 2
    with _on_lane(0, generation=1):
        state.assign_add(1)
    assert state.numpy() == 3


def test_a_variable_may_be_assigned_from_itself_on_the_chief() -> None:
    state = WorkerLocalVariable(tf.constant(5), "state")
    with _on_lane(0):
        state.assign_add(3)
    state.assign(state)
    assert state.numpy() == 8
    state.assign(state + 1)
    state.assign_sub(2)
    assert state.numpy() == 7


@pytest.mark.parametrize(
    ("aggregation", "none", "two"),
    [("SUM", 4.0, 4.0 + 1.0 + 2.0), ("MEAN", 4.0, 5.5)],
)
def test_floats_are_put_together(
    aggregation: str, none: float, two: float
) -> None:
    state = WorkerLocalVariable(
        tf.constant(4.0),
        "state",
        aggregation=tf.VariableAggregation[aggregation],
        rule_is_given=True,
    )
    assert state.numpy() == none
    for lane in (2, 1):
        with _on_lane(lane):
            state.assign(state + float(lane))
    assert state.numpy() == two
    state.assign_add(1.0)
    state.assign_sub(3.0)
    assert state.numpy() == two - 2.0
    state.assign(8.0)
    assert state.numpy() == 8.0


def test_the_first_that_took_part_speaks_for_all() -> None:
    state = WorkerLocalVariable(
        tf.constant(4),
        "state",
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    assert state.numpy() == 4
    for lane in (2, 1):
        with _on_lane(lane):
            state.assign_add(lane)
    assert state.numpy() == 5
    connection.present().part(Residents).forget_worker(0)
    assert state.numpy() == 6


def test_of_booleans_the_sum_is_whether_any_is_true() -> None:
    state = _sum([False, False])
    for lane in range(2):
        with _on_lane(lane):
            state.assign(tf.logical_or(state, [lane == 1, False]))
    assert state.numpy().tolist() == [True, False]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_are_summed(dtype: str) -> None:
    state = _sum(tf.cast(1, dtype))
    for lane in range(3):
        with _on_lane(lane):
            state.assign(state + tf.cast(2, dtype))
    assert state.numpy() == 7
    assert state.numpy().dtype == dtype


def test_what_cannot_be_put_together_is_refused() -> None:
    for dtype in ("int32", "bool"):
        with pytest.raises(errors.VariableCreationError, match="mean"):
            WorkerLocalVariable(
                tf.cast(0, dtype),
                "state",
                aggregation=tf.VariableAggregation.MEAN,
            )
    with pytest.raises(errors.VariableCreationError, match="aggregation"):
        WorkerLocalVariable(
            tf.constant(0), "state", aggregation=tf.VariableAggregation.NONE
        )


def test_every_worker_looks_up_in_a_table_of_its_own() -> None:
    table = WorkerTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1
    )
    look_up = tf.function(lambda: table.lookup(tf.constant(["b", "x"])))
    assert look_up().numpy().tolist() == [2, -1]
    assert not table.copies.resident.existing()
    for lane in range(4):
        with _on_lane(lane):
            assert look_up().numpy().tolist() == [2, -1]
            assert table.lookup(tf.constant(["a"])).numpy().tolist() == [1]
    copies = table.copies.resident.existing()
    assert len(copies) == 2, "one for each worker, shared by its lanes"
    handles = {id(copy.resource_handle) for copy in (*copies, table)}
    assert len(handles) == 3
    assert not look_up.get_concrete_function().graph.captures
    assert table.size().numpy() == 2


def test_eager_operations_ask_for_the_value() -> None:
    """Given a variable, they would bypass it and read its own handle."""
    state = _sum([1.0, 2.0])
    with _on_lane(0):
        state.assign([3.0, 4.0])
        np.testing.assert_array_equal(tf.multiply(state, 2.0), [6.0, 8.0])
    np.testing.assert_array_equal(tf.multiply(state, 2.0), [8.0, 12.0])
    assert tf.reduce_sum(state).numpy() == 10.0
    with tf.GradientTape() as tape:
        tape.watch(state)
        y = tf.multiply(state, 3.0)
    np.testing.assert_array_equal(tape.gradient(y, state), [3.0, 3.0])


def test_a_table_made_in_a_function_is_filled_by_it() -> None:
    tables = []

    @tf.function
    def look_up() -> tf.Tensor:
        tables.append(
            WorkerTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(["a", "b"]), tf.constant([1, 2])
                ),
                tf.constant(-1),
            )
        )
        return tables[0].lookup(tf.constant(["b", "x"]))

    concrete = look_up.get_concrete_function()
    for lane in (0, 2, 0):
        with _on_lane(lane):
            assert concrete().numpy().tolist() == [2, -1]
    (table,) = tables
    assert [c.size().numpy() for c in table.copies.resident.existing()] == [
        2,
        2,
    ]
    assert concrete().numpy().tolist() == [2, -1]


def _settled(value: Any, rule: MergeRule) -> WorkerLocalVariable:
    state = WorkerLocalVariable(tf.constant(value), "state")
    state.settle(rule)
    return state


@pytest.mark.parametrize(
    ("value", "rule", "expected"),
    [
        (2.0, MergeRule.MAX, [2.0, 2.0, 2.0, 3.0]),
        (-9.0, MergeRule.MAX, [-9.0, -5.0, 1.0, 3.0]),
        (2, MergeRule.MIN, [2, -5, -5, -5]),
        (float("inf"), MergeRule.MIN, [float("inf"), -5.0, -5.0, -5.0]),
        (10, MergeRule.SUM, [10, 5, 6, 9]),
    ],
)
def test_the_chiefs_own_value_counts_once(
    value: Any, rule: MergeRule, expected: list[Any]
) -> None:
    """Copies begin at a neutral element, not at the initial value."""
    state = _settled(value, rule)
    operation = {
        MergeRule.MAX: tf.maximum,
        MergeRule.MIN: tf.minimum,
        MergeRule.SUM: tf.add,
    }[rule]
    assign = tf.function(
        lambda x: state.assign(operation(state, tf.cast(x, state.dtype)))
    )
    seen = [state.numpy()]
    for lane, x in enumerate((-5, 1, 3)):
        with _on_lane(lane):
            assign(tf.constant(x))
        seen.append(state.numpy())
    assert seen == expected
    state.assign(value)
    assert state.numpy() == value


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (MergeRule.LAST, 3.0),
        (MergeRule.FIRST, 3.0),
        (MergeRule.MEAN, 4.0),
    ],
)
def test_a_lane_without_batches_has_no_say(
    rule: MergeRule, expected: float
) -> None:
    aggregation = {
        MergeRule.LAST: tf.VariableAggregation.SUM,
        MergeRule.FIRST: tf.VariableAggregation.ONLY_FIRST_REPLICA,
        MergeRule.MEAN: tf.VariableAggregation.MEAN,
    }[rule]
    state = WorkerLocalVariable(
        tf.constant(-1.0), "state", aggregation=aggregation
    )
    if not state.rule_is_given:
        state.settle(rule)
    assert state.rule is rule

    @tf.function
    def step(batches: tf.Tensor) -> None:
        for x in batches:
            state.assign(x)

    for lane, batches in enumerate(([], [8.0, 3.0], [5.0], [])):
        with _on_lane(lane):
            step(tf.reshape(tf.constant(batches, tf.float32), [-1]))
    assert state.numpy() == expected
    state.assign(7.0)
    with _on_lane(0):
        step(tf.zeros([0]))
    assert state.numpy() == 7.0


def test_a_constant_is_the_chiefs_on_every_lane() -> None:
    state = _settled(2.5, MergeRule.CONSTANT)
    double = tf.function(lambda: 2.0 * state)
    with _on_lane(1):
        assert double().numpy() == 5.0
    assert state.numpy() == 2.5
    state.assign(3.0)
    with _on_lane(1):
        assert double().numpy() == 6.0


def test_functions_go_on_with_what_takes_a_states_place() -> None:
    state = WorkerLocalVariable(tf.constant(3.0), "state")
    add = tf.function(lambda: state.assign_add(1.0))
    with _on_lane(0):
        add()
    assert state.numpy() == 4.0
    shared = testing.remote_variable(state.numpy())
    state.replace_by(shared)
    for lane in range(3):
        with _on_lane(lane):
            add()
    add()
    assert shared.numpy() == state.numpy() == 8.0


def test_nobody_knows_the_rule_of_an_eager_assignment() -> None:
    state = WorkerLocalVariable(tf.constant(1.0), "state")
    state.assign(2.0)
    with _on_lane(0):
        state.assign_add(1.0)
        with pytest.raises(errors.UnsupportedError, match="'state'"):
            state.assign(tf.maximum(state, 3.0))
    assert state.numpy() == 3.0
    state.settle(MergeRule.SUM)
    with _on_lane(0):
        state.assign(state + 1.0)
    assert state.numpy() == 4.0


def test_the_chief_keeps_what_a_worker_has_counted_that_leaves() -> None:
    total = WorkerLocalVariable(tf.constant(0), "total")
    mean = WorkerLocalVariable(
        tf.constant(0.0),
        "mean",
        aggregation=tf.VariableAggregation.MEAN,
        rule_is_given=True,
    )
    for lane in range(4):
        with _on_lane(lane):
            total.assign_add(lane)
            mean.assign(float(lane))
    residents = connection.present().part(Residents)
    for _ in range(2):
        residents.release_worker(0)
        assert total.numpy() == 6
        assert mean.numpy() == 1.5
    residents.forget_worker(0)
    assert total.numpy() == 6
    assert mean.numpy() == 1.5
    total.assign(0)
    mean.assign(2.0)
    assert total.numpy() == 0
    assert mean.numpy() == 2.0

"""Tests that states get a rule, a place or an order, or are refused."""

import types
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.steps.metrics.step_states import StepStates
from tfps_plugin.variables import testing
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.states.merge_rule import MergeRule
from tfps_plugin.variables.updates.update_lock import UpdateLock

_X = tf.TensorSpec([], tf.float32)


def _on_ps(value: Any, path: str) -> RemoteVariable:
    variable = testing.remote_variable(value, trainable=False)
    variable.update_lock = UpdateLock(testing.LOCAL_DEVICE, "step_states")
    variable.path = path
    return variable


class _Holder:
    """Shows a variable, as a `keras.Variable` does."""

    def __init__(self, value: Any) -> None:
        self._initialize(value)

    def _initialize(self, value: Any) -> None:
        self._value = value

    @property
    def value(self) -> Any:
        return self._value


class _Strategy:
    """Has one parameter server, which is this process."""

    def move_to_ps(self, state: WorkerLocalVariable) -> RemoteVariable:
        variable = _on_ps(state.numpy(), state.path)
        state.replace_by(variable)
        return variable


class _Model:
    """A state of a layer, and three of a metric, as Keras shows them."""

    name = "some_model"
    optimizer = None
    distribute_strategy = _Strategy()

    def __init__(self) -> None:
        self.metrics_variables = [
            _Holder(self._local(name)) for name in ("first", "second", "third")
        ]
        self.layer = types.SimpleNamespace(
            name="memory",
            variables=[],
            # Keras does not list the items of a list.
            kept=[[_on_ps(0.0, "memory/kept")]],
        )
        self.variables: list[Any] = []

    def _local(self, name: str) -> WorkerLocalVariable:
        state = WorkerLocalVariable(tf.constant(0.0), name)
        state.path = f"metric/{name}"
        return state

    def _flatten_layers(self) -> list[Any]:
        return [self, self.layer]

    @property
    def kept(self) -> RemoteVariable:
        variable: RemoteVariable = self.layer.kept[0][0]
        return variable

    @property
    def values(self) -> list[Any]:
        return [holder.value for holder in self.metrics_variables]


def _settled(
    model: Any, step: Callable[..., Any]
) -> tuple[StepStates, list[tf.Graph]]:
    states = StepStates(model)
    graphs: list[tf.Graph] = []

    def trace() -> tf.Graph:
        function = tf.function(
            lambda x: step(model.kept, *model.values, x), autograph=False
        )
        graphs.append(function.get_concrete_function(_X).graph)
        return graphs[-1]

    states.settle(trace)
    return states, graphs


def test_copies_that_can_be_put_together_stay() -> None:
    model = _Model()

    def step(kept: Any, first: Any, second: Any, third: Any, x: Any) -> None:
        kept.assign_add(x)
        first.assign_add(x)
        second.assign(tf.maximum(second, x))
        third.assign(x)

    states, graphs = _settled(model, step)
    assert len(graphs) == 1
    assert not states.in_order
    states.require_any_order()
    assert [state.rule for state in model.values] == [
        MergeRule.SUM,
        MergeRule.MAX,
        MergeRule.LAST,
    ]


def test_others_move_and_are_updated_under_a_lock() -> None:
    model = _Model()
    before = model.values

    def step(kept: Any, first: Any, second: Any, third: Any, x: Any) -> None:
        first.assign(0.9 * first + 0.1 * x)
        second.assign_add(x)

    states, graphs = _settled(model, step)
    assert [type(one) for one in model.values] == [
        RemoteVariable,
        WorkerLocalVariable,
        WorkerLocalVariable,
    ]
    types_of = [[o.type for o in g.get_operations()] for g in graphs]
    assert ["MutexLock" in found for found in types_of] == [False, True]
    assert not states.in_order
    assert not states.are_outdated
    assert before[0].is_replaced


def test_what_passes_from_batch_to_batch_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _Model()

    def step(kept: Any, first: Any, second: Any, third: Any, x: Any) -> Any:
        y = tf.linalg.norm([x, kept])
        kept.assign(y)
        first.assign(x)
        second.assign_add(x)
        return y

    states, _ = _settled(model, step)
    (found,) = states.in_order
    assert found == "'memory/kept' of the layer 'memory'"
    with pytest.raises(errors.UnsupportedError) as raised:
        states.require_any_order()
    assert found in str(raised.value)
    assert "some_model" in str(raised.value)
    assert not caplog.records
    for _ in range(2):
        states.announce_order()
    (record,) = caplog.records
    assert found in record.getMessage()
    # Now there is a last batch, on some lane.
    first, second, _ = model.values
    assert isinstance(first, RemoteVariable)
    assert second.rule is MergeRule.SUM


def test_two_steps_that_disagree_share_one() -> None:
    model = _Model()
    states, _ = _settled(
        model, lambda kept, first, second, third, x: first.assign_add(x)
    )
    assert not states.are_outdated
    later, _ = _settled(
        model,
        lambda kept, first, second, third, x: first.assign(
            tf.maximum(first, x)
        ),
    )
    assert isinstance(model.values[0], RemoteVariable)
    assert states.are_outdated
    assert not later.are_outdated


def test_what_the_chief_has_is_refused() -> None:
    outside = tf.Variable(0.0, name="outside")
    with pytest.raises(errors.VariableCreationError, match="outside"):
        _settled(
            _Model(),
            lambda kept, first, second, third, x: outside.assign_add(x),
        )
    # Reading a state changes nothing.
    _settled(
        _Model(),
        lambda kept, first, second, third, x: first.assign_add(x * outside),
    )


def test_a_state_that_the_model_does_not_know_is_refused() -> None:
    hidden = WorkerLocalVariable(tf.constant(0.0), "hidden")
    with pytest.raises(errors.UnsupportedError, match="'hidden'"):
        _settled(
            _Model(),
            lambda kept, first, second, third, x: hidden.assign(
                0.5 * hidden + x
            ),
        )


def test_an_aggregation_wins() -> None:
    mean = WorkerLocalVariable(
        tf.constant(0.0), "mean", aggregation=tf.VariableAggregation.MEAN
    )
    _settled(
        _Model(),
        lambda kept, first, second, third, x: mean.assign(0.5 * mean + x),
    )
    assert mean.rule is MergeRule.MEAN
    assert not mean.is_replaced

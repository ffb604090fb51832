"""Tests which states workers cannot put together in a synchronous step."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.methods import self_assignment
from tfps_plugin.variables.states import sync_rules
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.states.sync_rules import Change

_X = tf.TensorSpec([2, 2], tf.float32)


def _whole(path: str) -> Any:
    variable = testing.remote_variable(tf.ones([2, 2]), trainable=False)
    variable.path = path
    return variable


def _sharded(path: str) -> Any:
    variable = testing.sharded_variable(tf.ones([2, 2]), 2)
    variable.path = path
    return variable


class _Step:
    """States of one layer, and of another; notes what a step assigns."""

    def __init__(self, make: Callable[[str], Any]) -> None:
        self.state = make("layer/state")
        self.other = make("layer/other")
        self.far = make("another/state")
        self.changes: list[Change] = []

    def assign(self, variable: Any, value: Any) -> None:
        others = self_assignment.others_of(variable, value)
        self.changes.append(Change(variable, value, others))


Trace = Callable[[_Step, tf.Tensor], Any]


def _found(make: Callable[[str], Any], trace: Trace) -> list[str]:
    """Returns the paths of the refused states of a step."""
    step = _Step(make)
    found: list[str] = []

    def run(x: tf.Tensor) -> None:
        result = trace(step, x)
        results = [each.value for each in step.changes]
        if isinstance(result, tf.Tensor):
            results.append(result)
        # Before the end of the function: no later than other refusals.
        refused = sync_rules.of_one_step(
            Flow(tf.compat.v1.get_default_graph()),
            step.changes,
            [each.variable for each in step.changes],
            results,
        )
        found.extend(each.variable.path for each in refused)

    tf.function(run, autograph=False).get_concrete_function(_X)
    return found


_KINDS = pytest.mark.parametrize("make", [_whole, _sharded])


@_KINDS
@pytest.mark.parametrize(
    "trace",
    [
        lambda step, x: step.assign(step.state, step.state * 0.9 + x * 0.1),
        lambda step, x: step.assign(
            step.state, step.state + 0.1 * (x - step.state)
        ),
        lambda step, x: step.assign(step.state, tf.maximum(step.state, x)),
        # A value of the last batch, for others to look at.
        lambda step, x: step.assign(step.state, 2.0 * x),
        # Statistics of inputs that a previous layer has normalized.
        lambda step, x: (
            step.assign(step.far, step.far * 0.9 + x * 0.1),
            step.assign(step.state, step.state * 0.9 + x * step.far * 0.1),
        ),
        # The step may use an average of batches.
        lambda step, x: (
            step.assign(step.state, step.state * 0.9 + x * 0.1),
            x - step.state,
        )[1],
    ],
)
def test_the_mean_over_workers_is_right(
    make: Callable[[str], Any], trace: Trace
) -> None:
    assert _found(make, trace) == []


def _in_a_loop(step: _Step, x: tf.Tensor) -> None:
    """Carries a state through a loop, as a recurrent layer does."""
    _, last = tf.while_loop(
        lambda n, carried: n < 3,
        lambda n, carried: (n + 1, tf.tanh(tf.matmul(carried, x))),
        (tf.constant(0), tf.convert_to_tensor(step.state)),
    )
    step.assign(step.state, last)


@_KINDS
@pytest.mark.parametrize(
    "trace",
    [
        _in_a_loop,
        lambda step, x: step.assign(
            step.state, tf.matmul(x, tf.convert_to_tensor(step.state))
        ),
        # An average of what depends on it otherwise.
        lambda step, x: step.assign(
            step.state, step.state * 0.9 + tf.reduce_sum(step.state) * x
        ),
        # A value kept from the previous batch.
        lambda step, x: (x - step.state, step.assign(step.state, x))[0],
        # A sum, and a ratio of sums.
        lambda step, x: (
            step.assign(step.other, step.other * 0.9 + x),
            step.assign(step.state, step.state + x / step.other),
        ),
    ],
)
def test_the_mean_over_workers_is_the_state_of_none(
    make: Callable[[str], Any], trace: Trace
) -> None:
    assert _found(make, trace) == ["layer/state"]

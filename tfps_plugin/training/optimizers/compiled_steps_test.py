"""Tests of the functions that apply an optimizer outside of functions."""

import copy
import pickle
import types
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.optimizers import compiled_steps
from tfps_plugin.training.optimizers.compiled_steps import CompiledSteps
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.step_trace import StepTrace


class _Optimizer:
    """Subtracts gradients, times a number."""

    factor = 0.0
    _distribution_strategy = types.SimpleNamespace(layout_version=0)

    def __init__(self) -> None:
        self.factor = 1.0

    def _get_variable_index(self, variable: Any) -> int:
        return 0


_traced: list[Any] = []


class _Step:
    def __init__(
        self, optimizer: Any, variables: Sequence[Any], trace: StepTrace
    ) -> None:
        self._optimizer, self._variables = optimizer, variables

    def run(self, gradients: Sequence[Any]) -> None:
        _traced.append([type(each) for each in gradients])
        for variable, gradient in zip(self._variables, gradients, strict=True):
            dense = tf.convert_to_tensor(gradient) * self._optimizer.factor
            variable.assign_sub(dense)


@pytest.fixture(autouse=True)
def _fake_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_steps, "OptimizerStep", _Step)
    _traced.clear()


def test_any_number_of_rows_is_one_function() -> None:
    steps, optimizer = CompiledSteps(), _Optimizer()
    variable = testing.remote_variable(tf.zeros([5, 2]))
    for cls in (tf.IndexedSlices, DistinctRows):
        for ids in ([1, 3], [4], [], [0, 1, 2]):
            values = tf.ones([len(ids), 2])
            steps.run(
                optimizer, [cls(values, tf.constant(ids, tf.int64))], [variable]
            )
    assert _traced == [[tf.IndexedSlices], [DistinctRows]]
    np.testing.assert_array_equal(variable.numpy()[:, 0], [-2, -4, -2, -2, -2])


def test_a_setting_that_was_changed_counts() -> None:
    steps, optimizer = CompiledSteps(), _Optimizer()
    variable = testing.remote_variable(tf.zeros([2]))
    for factor in (1.0, 10.0, 1.0):
        optimizer.factor = factor
        steps.run(optimizer, [tf.ones([2])], [variable])
    assert variable.numpy().tolist() == [-12.0, -12.0]
    assert len(_traced) == 2


def test_a_copy_of_the_optimizer_begins_with_none() -> None:
    steps, optimizer = CompiledSteps(), _Optimizer()
    variable = testing.remote_variable(tf.zeros([2]))
    steps.run(optimizer, [tf.ones([2])], [variable])
    for copied in (copy.deepcopy(steps), pickle.loads(pickle.dumps(steps))):
        assert isinstance(copied, CompiledSteps)
        assert not copied._functions


def test_only_kerass_own_are_compiled_and_on_the_chief() -> None:
    class Users(keras.optimizers.SGD):
        pass

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    assert compiled_steps.can_compile(keras.optimizers.Adam())
    assert compiled_steps.can_compile(keras.optimizers.SGD(schedule))
    assert not compiled_steps.can_compile(Users())
    assert not compiled_steps.can_compile(keras.optimizers.SGD(lambda: 0.1))
    optimizer, seen = keras.optimizers.SGD(0.1), []
    tf.function(
        lambda: seen.append(compiled_steps.can_compile(optimizer))
    ).get_concrete_function()
    assert seen == [False]
    with testing.lane(0):
        assert not compiled_steps.can_compile(keras.optimizers.SGD(schedule))

"""Tests of the class of a `keras.Variable` on parameter servers."""

import copy
import pickle
from typing import Any

import keras
import numpy as np
import pytest

from tfps_plugin._compat.keras import set_value
from tfps_plugin.training.patches import hooks
from tfps_plugin.training.patches.variable_methods import VariableOnPs
from tfps_plugin.variables import testing

hooks.install()

_VALUE = np.arange(6, dtype="float32").reshape(3, 2)


class _Counting(keras.Variable):
    """A variable of a user, with a method of its own."""

    times = 0

    def assign(self, value: Any) -> Any:
        self.times += 1
        return super().assign(value)


def _on_ps(variable: keras.Variable) -> keras.Variable:
    set_value(variable, testing.sharded_variable(_VALUE, 2))
    return variable


def test_only_variables_on_parameter_servers_have_it() -> None:
    variable = keras.Variable(_VALUE)
    assert type(variable) is keras.Variable
    assert type(_on_ps(variable)) is VariableOnPs


def test_methods_of_a_user_come_first() -> None:
    variable = _on_ps(_Counting(_VALUE))
    assert isinstance(variable, _Counting)
    variable.assign(_VALUE + 1)
    assert variable.times == 1
    # Keras's own would assign.
    variable.assign_add(np.ones((3, 2)))
    assert variable.times == 1
    np.testing.assert_array_equal(variable.numpy(), _VALUE + 2)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
)
def test_a_copy_elsewhere_can_be_changed(copied: Any) -> None:
    variable = copied(_on_ps(keras.Variable(_VALUE)))
    variable.assign(_VALUE * 2)
    variable.assign_sub(_VALUE)
    np.testing.assert_array_equal(variable.numpy(), _VALUE)
    np.testing.assert_array_equal(
        keras.ops.take(variable, [2], axis=0), _VALUE[2:]
    )

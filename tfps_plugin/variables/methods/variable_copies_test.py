"""Tests of copies of variables."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.variables import testing
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable

_VALUE = np.arange(8.0, dtype="float32").reshape(4, 2)


def _variables() -> list[Any]:
    return [
        testing.sharded_variable(_VALUE, 2),
        testing.remote_variable(_VALUE, trainable=False),
        WorkerLocalVariable(tf.constant(_VALUE), "state"),
    ]


@pytest.mark.parametrize(
    "variable", _variables(), ids=["table", "whole", "local"]
)
def test_a_copy_has_the_value_and_goes_its_own_way(variable: Any) -> None:
    assert copy.copy(variable) is variable
    deep = copy.deepcopy([variable, variable])
    assert deep[0] is deep[1]
    for copied in (deep[0], pickle.loads(pickle.dumps(variable))):
        assert copied is not variable
        assert copied.trainable == variable.trainable
        assert copied.aggregation == variable.aggregation
        copied.assign_add(tf.ones([4, 2]))
        np.testing.assert_array_equal(copied.numpy(), _VALUE + 1.0)
        np.testing.assert_array_equal(variable.numpy(), _VALUE)

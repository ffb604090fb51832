"""Tests that variables of an ended connection never call TensorFlow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables import testing
from tfps_plugin.variables.updates.update_lock import UpdateLock

_VALUE = np.arange(8, dtype="float32").reshape(4, 2)
_ROWS = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([1]))

_USES: dict[str, Callable[[Any], Any]] = {
    "read": lambda v: v.read_value(),
    "numpy": lambda v: v.numpy(),
    "convert": tf.convert_to_tensor,
    "arithmetic": lambda v: v + 1.0,
    "slice": lambda v: v[1:3],
    "lookup": lambda v: tf.gather(v, [1]),
    "assign": lambda v: v.assign(_VALUE),
    "assign_add": lambda v: v.assign_add(_VALUE),
    "scatter_add": lambda v: v.scatter_add(_ROWS),
    "checkpoint": lambda v: tf.train.Checkpoint(v=v).write("/nowhere/at/all"),
    "trace": lambda v: tf.function(lambda: v + 1.0)(),
}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Returns a function that ends the connection of the test's variables."""
    monkeypatch.setattr(connection, "_present", connection._Present())
    made_on = connection.begin()
    return lambda: made_on.end("superseded by a newer strategy")


@pytest.mark.parametrize("use", _USES.values(), ids=_USES)
@pytest.mark.parametrize("num_shards", [1, 2])
def test_whatever_needs_the_value_is_refused(
    ended: Callable[[], object], num_shards: int, use: Callable[[Any], Any]
) -> None:
    variable: Any = (
        testing.remote_variable(_VALUE)
        if num_shards == 1
        else testing.sharded_variable(_VALUE, num_shards)
    )
    ended()
    with pytest.raises(errors.StrategySupersededError, match="superseded"):
        use(variable)


def test_what_it_is_can_still_be_asked(ended: Callable[[], object]) -> None:
    variable = testing.remote_variable(_VALUE)
    table = testing.sharded_variable(_VALUE, 2)
    ended()
    assert "of a strategy that has ended" in repr(variable)
    assert "2 shards" in repr(table)
    for each in (variable, table):
        assert each.shape == (4, 2)
        assert each.device == testing.LOCAL_DEVICE


def test_functions_that_use_it_are_refused(ended: Callable[[], object]) -> None:
    variable = testing.remote_variable(_VALUE)
    read = tf.function(lambda: variable + 1.0)
    np.testing.assert_array_equal(read(), _VALUE + 1.0)
    ended()
    with pytest.raises(errors.StrategySupersededError):
        read()


def test_its_lock_is_refused(ended: Callable[[], object]) -> None:
    lock = UpdateLock(testing.LOCAL_DEVICE, "superseded")
    lock._handle_now()
    ended()
    with pytest.raises(errors.StrategySupersededError):
        lock._handle_now()


def test_what_is_made_afterwards_works(ended: Callable[[], object]) -> None:
    ended()
    variable = testing.remote_variable(_VALUE)
    np.testing.assert_array_equal(variable.numpy(), _VALUE)

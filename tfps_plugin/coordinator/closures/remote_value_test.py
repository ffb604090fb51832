"""Tests of remote values."""

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.closures.remote_value import fetch_all


def _ready(result: Any) -> RemoteValue:
    value = RemoteValue()
    value.set_outcome(ClosureState.DONE, result, 1)
    return value


def test_not_ready() -> None:
    value = RemoteValue()
    assert not value.is_ready()
    assert value.error is None
    assert repr(value) == "<RemoteValue: not ready>"
    with pytest.raises(TimeoutError, match=r"timeout_seconds=0\.01"):
        value.fetch(timeout_seconds=0.01)


def test_fetch_waits() -> None:
    value = RemoteValue()
    fetched: list[Any] = []
    thread = threading.Thread(target=lambda: fetched.append(value.fetch()))
    thread.start()
    assert thread.is_alive()
    value.set_outcome(ClosureState.DONE, 7, 1)
    thread.join(timeout=30)
    assert fetched == [7]


def test_get_leaves_tensors_and_fetch_brings_them() -> None:
    tensor = tf.constant([1.0, 2.0])
    value = _ready({"a": [tensor, "text"], "b": (None, 3)})
    assert value.get()["a"][0] is tensor
    fetched = value.fetch()
    assert isinstance(fetched["a"][0], np.ndarray)
    assert fetched["a"][0].tolist() == [1.0, 2.0]
    assert fetched["a"][1] == "text"
    assert fetched["b"] == (None, 3)
    assert repr(value) == "<RemoteValue: ready on worker 1>"


def test_fetches_composite_tensors() -> None:
    sparse = tf.sparse.from_dense([[0, 1], [2, 0]])
    ragged = tf.ragged.constant([[1], [2, 3]])
    fetched = _ready((sparse, ragged)).fetch()
    assert tf.sparse.to_dense(fetched[0]).numpy().tolist() == [[0, 1], [2, 0]]
    assert [row.tolist() for row in fetched[1]] == [[1], [2, 3]]


def test_failed() -> None:
    value = RemoteValue()
    error = ZeroDivisionError("step")
    value.set_outcome(ClosureState.FAILED, error, 1)
    assert value.is_ready()
    assert value.error is error
    for wait in (value.get, value.fetch):
        with pytest.raises(ZeroDivisionError, match="step"):
            wait()
    assert repr(value) == "<RemoteValue: ZeroDivisionError>"


def test_cancelled() -> None:
    value = RemoteValue()
    value.set_outcome(ClosureState.CANCELLED, None, None)
    assert isinstance(value.error, errors.ClosureCancelledError)
    with pytest.raises(errors.ClosureCancelledError, match="cancelled"):
        value.fetch()


class _Unreadable:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def numpy(self) -> None:
        raise self._error


def test_value_of_a_dead_worker() -> None:
    error = tf.errors.UnavailableError(None, None, "Socket closed\nmore")
    with pytest.raises(errors.WorkerLostError, match="worker 1") as caught:
        _ready(_Unreadable(error)).fetch()
    assert "UnavailableError: Socket closed. Fetch" in str(caught.value)
    assert caught.value.__cause__ is error


class _OnAWorker:
    """A tensor of a worker that dies after it was read once."""

    def __init__(self) -> None:
        self._num_reads = 0

    def numpy(self) -> np.ndarray:
        self._num_reads += 1
        if self._num_reads > 1:
            raise tf.errors.UnavailableError(None, None, "Connection reset")
        return np.arange(3.0)


def test_what_was_fetched_outlives_its_worker() -> None:
    value = _ready({"a": _OnAWorker(), "b": 3})
    first = value.fetch()
    first["a"][:] = -1.0
    again = value.fetch()
    assert again["a"].tolist() == [0.0, 1.0, 2.0]
    assert again["b"] == 3


def test_other_errors_of_reading_stay_as_they_are() -> None:
    error = tf.errors.InvalidArgumentError(None, None, "a bad value")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a bad value"):
        _ready(_Unreadable(error)).fetch()


def test_fetch_all_replaces_remote_values_only() -> None:
    tensor = tf.constant(1)
    structure = {"a": _ready(tf.constant(2)), "b": [tensor, "text"]}
    fetched = fetch_all(structure)
    assert fetched["a"] == 2
    assert fetched["b"][0] is tensor
    assert fetched["b"][1] == "text"


def test_whoever_asks_has_seen_the_error_of_the_round() -> None:
    class Broken(Exception):
        pass

    pending = [Broken("first")]

    def raise_pending() -> None:
        if pending:
            raise pending.pop()

    cancelled = RemoteValue(raise_pending)
    cancelled.set_outcome(ClosureState.CANCELLED, None, None)
    with pytest.raises(Broken, match="first"):
        cancelled.get()
    assert not pending
    with pytest.raises(errors.ClosureCancelledError):
        cancelled.get()

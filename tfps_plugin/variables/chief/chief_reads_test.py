import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chief_reads, "_PAUSES_SECONDS", (0.0, 0.0))


class _Flaky:
    """A read that fails some times before it succeeds."""

    def __init__(self, num_failures: int, error: tf.errors.OpError) -> None:
        self.num_calls = 0
        self._num_failures = num_failures
        self._error = error

    def __call__(self) -> str:
        self.num_calls += 1
        if self.num_calls <= self._num_failures:
            raise self._error
        return "value"


def test_a_change_of_the_cluster_is_read_over() -> None:
    lost = tf.errors.InternalError(None, None, "found to be poisoned")
    assert chief_reads.read(_Flaky(2, lost)) == "value"


def test_what_stays_is_raised() -> None:
    flaky = _Flaky(9, tf.errors.UnavailableError(None, None, ""))
    with pytest.raises(tf.errors.UnavailableError):
        chief_reads.read(flaky)
    assert flaky.num_calls == 4


def test_a_user_s_error_is_raised_at_once() -> None:
    flaky = _Flaky(1, tf.errors.InternalError(None, None, "mine"))
    with pytest.raises(tf.errors.InternalError, match="mine"):
        chief_reads.read(flaky)
    assert flaky.num_calls == 1


_UNAVAILABLE = tf.errors.UnavailableError(None, None, "")


def _lost() -> bool:
    raise errors.ParameterServerLostError("since then")


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ([lambda: True], None),
        # It recovered before anybody could wait for it.
        ([lambda: False], None),
        ([_lost], errors.ParameterServerLostError),
        ([_lost, lambda: False], errors.ParameterServerLostError),
        # The variable may live on the cluster that has recovered.
        ([_lost, lambda: True], None),
    ],
)
def test_a_ps_that_is_lost_is_waited_for_or_named(
    gates: list[Callable[[], bool]], expected: type[Exception] | None
) -> None:
    flaky = _Flaky(3, _UNAVAILABLE)
    with contextlib.ExitStack() as stack:
        for gate in gates:
            part = connection.present().part(RecoveryGate)
            stack.callback(part.register(gate))
        if expected is None:
            assert chief_reads.read(flaky) == "value"
            return
        with pytest.raises(expected) as raised:
            chief_reads.read(flaky)
    if expected is errors.ParameterServerLostError:
        assert raised.value.__cause__ is _UNAVAILABLE


class _Fetched:
    """A tensor of which TensorFlow loses the value at first."""

    shape = (2, 3)

    def __init__(self) -> None:
        self._values = [np.zeros(0), np.ones((2, 3))]

    def numpy(self) -> np.ndarray:
        return self._values.pop(0)


def test_an_empty_tensor_in_place_of_a_value_is_read_again() -> None:
    tensor: Any = _Fetched()
    np.testing.assert_array_equal(chief_reads.to_array(tensor), np.ones((2, 3)))
    empty: Any = tf.zeros([0])
    assert chief_reads.to_array(empty).shape == (0,)
    string: Any = tf.constant("text")
    assert chief_reads.to_array(string) == b"text"

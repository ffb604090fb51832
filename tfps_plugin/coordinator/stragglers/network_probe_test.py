"""Tests of the probe of the network that need no cluster."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.stragglers import network_probe
from tfps_plugin.coordinator.stragglers.network_probe import NetworkProbe

_TIMEOUT_SECONDS = 30.0
_CPU = "/device:CPU:0"


class _Workers:
    """Workers that run what is scheduled; some never do."""

    def __init__(self, silent: tuple[int, ...] = ()) -> None:
        self._silent = silent
        self.asked: list[int] = []
        self.left: list[Callable[[], Any]] = []

    def schedule(
        self, worker_index: int, call: Callable[[], Any]
    ) -> RemoteValue:
        self.asked.append(worker_index)
        value = RemoteValue()
        if worker_index in self._silent:
            self.left.append(call)
        else:
            value.set_outcome(ClosureState.DONE, call(), worker_index)
        return value


def test_a_slow_worker_is_measured_with_some_others() -> None:
    workers = _Workers()
    probe = NetworkProbe(workers.schedule, lambda: [_CPU, _CPU])
    found = probe.measure([50], range(100), _TIMEOUT_SECONDS)
    assert workers.asked == [50, *range(7)]
    assert sorted(found) == [*range(7), 50]
    assert all(len(seconds) == 2 for seconds in found.values())


def test_a_worker_that_does_not_answer_is_not_asked_later() -> None:
    workers = _Workers(silent=(1,))
    probe = NetworkProbe(workers.schedule, lambda: [_CPU])
    assert probe.measure([1], [0, 1, 2], 0.0) == {}
    # Nobody to compare with it is asked.
    assert workers.asked == [1]
    # Its turn comes when nobody wants to know.
    (call,) = workers.left
    assert call() is None


def test_what_cannot_be_measured_is_left_out() -> None:
    workers = _Workers()
    probe = NetworkProbe(
        workers.schedule, lambda: ["/job:ps/task:7/device:CPU:0"]
    )
    assert probe.measure([0], [0, 1], _TIMEOUT_SECONDS) == {}
    nothing = NetworkProbe(workers.schedule, lambda: [])
    assert nothing.measure([0], [1], 0.0) == {}


def test_the_fastest_of_several_measurements_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = _Workers()
    probe = NetworkProbe(workers.schedule, lambda: [_CPU, _CPU])
    measured = iter([[0.3, 0.01], [0.02, 0.2], [0.5, 0.5]])
    monkeypatch.setattr(
        network_probe,
        "_traced",
        lambda *_: lambda: (tf.constant(next(measured)),),
    )
    monkeypatch.setattr(network_probe, "_MOST_CALLS", 2)
    found = probe.measure([0], [], _TIMEOUT_SECONDS)
    assert found == {0: pytest.approx({0: 0.02, 1: 0.01})}
    # On a narrow link, one takes long enough.
    monkeypatch.setattr(network_probe, "_ENOUGH_SECONDS", 0.0)
    found = probe.measure([0], [], _TIMEOUT_SECONDS)
    assert found == {0: pytest.approx({0: 0.5, 1: 0.5})}

"""Tests that a coordinator ends with the connection to its cluster."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.variables.chief.recovery_gate import RecoveryGate

_TIMEOUT_SECONDS = 30.0


def test_every_use_is_refused_at_once() -> None:
    strategy = FakeStrategy(FakeSession(num_workers=2, num_ps=1))
    coordinator = ClusterCoordinator(strategy)
    empty = tf.queue.FIFOQueue(1, [tf.int32], shapes=[[]])
    kept = coordinator.schedule(lambda: 7)
    assert kept.fetch(_TIMEOUT_SECONDS) == 7
    endless = tf.function(lambda: empty.dequeue())
    running = [coordinator.schedule(endless) for _ in range(20)]
    connection = strategy.session.connection
    assert connection.end("superseded by a newer strategy"), "it is quiet"
    uses: dict[str, Callable[[], Any]] = {
        "schedule": lambda: coordinator.schedule(lambda: 1),
        "join": coordinator.join,
        "done": coordinator.done,
        "fetch": lambda: coordinator.fetch(kept),
        "result": kept.fetch,
        "running": running[0].fetch,
        "waiting": running[-1].fetch,
        "create": lambda: ClusterCoordinator(strategy),
    }
    for _ in range(2):
        for name, use in uses.items():
            with pytest.raises(errors.StrategySupersededError) as raised:
                use()
            assert "superseded by a newer strategy" in str(raised.value), name
    coordinator.close()


def test_its_parameter_servers_are_asked_no_more() -> None:
    session = FakeSession(num_workers=1, num_ps=1)
    coordinator = ClusterCoordinator(FakeStrategy(session))
    session.start("ps", 0)  # It was restarted: what it held is lost.
    gate = session.connection.part(RecoveryGate)
    with pytest.raises(errors.ParameterServerLostError):
        gate.wait()
    session.connection.end("superseded by a newer strategy")
    assert not gate.wait()
    coordinator.close()


def test_one_that_was_closed_before_is_not_told() -> None:
    session = FakeSession()
    ClusterCoordinator(FakeStrategy(session)).close()
    assert session.connection.end("superseded by a newer strategy")

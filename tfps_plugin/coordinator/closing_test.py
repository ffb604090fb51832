"""Tests of the end of a coordinator that has steps of all workers."""

import types

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy


class _GroupCalls:
    """Steps that workers make together; notes how they are ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def stop(self) -> None:
        self.ended.append("stop")

    def wait_until_idle(self, timeout_seconds: float | None) -> bool:
        assert timeout_seconds is not None
        self.ended.append("wait")
        return True


def test_closing_waits_for_steps_of_all_workers() -> None:
    calls = _GroupCalls()
    strategy = FakeStrategy(FakeSession(num_workers=1, num_ps=1))
    strategy.scheduled_steps = types.SimpleNamespace(  # type: ignore[attr-defined]
        new_calls=lambda coordinator: calls
    )
    coordinator = ClusterCoordinator(strategy)
    coordinator.close()
    coordinator.close()
    assert calls.ended == ["stop", "wait"]

"""When to look for calls that hang."""

from tfps_plugin.coordinator.members.hanging_calls import HangingCalls
from tfps_plugin.coordinator.members.hanging_calls import Restored


def test_each_once_and_not_too_early() -> None:
    calls = HangingCalls(patience_seconds=5.0)
    calls.restored([1], 100.0)
    calls.restored([], 101.0)
    calls.restored([0, 1], 102.0)
    assert list(calls.due(104.9)) == []
    assert list(calls.due(106.0)) == [Restored([1], 100.0)]
    assert list(calls.due(106.0)) == []
    assert list(calls.due(200.0)) == [Restored([0, 1], 102.0)]

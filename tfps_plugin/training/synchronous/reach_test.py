"""Tests of waiting until workers reach parameter servers."""

import collections
from collections.abc import Callable
from typing import Any

import pytest

from tfps_plugin.training.synchronous import reach


class _Attempt:
    """A call that has ended, or never does."""

    def __init__(self, *, has_ended: bool, error: Exception | None) -> None:
        self._has_ended = has_ended
        self.error = error

    def is_ready(self) -> bool:
        return self._has_ended

    def on_ended(self, listener: Callable[[], None]) -> None:
        if self._has_ended:
            listener()


class _Coordinator:
    """Coordinator whose workers fail some times first."""

    def __init__(self, failures: dict[int, float]) -> None:
        self._failures = failures
        self.calls: collections.Counter[int] = collections.Counter()

    def schedule_on(self, worker: int, function: Any) -> _Attempt:
        assert callable(function)
        self.calls[worker] += 1
        fails = self.calls[worker] <= self._failures[worker]
        return _Attempt(
            has_ended=self._failures[worker] != float("inf"),
            error=RuntimeError("no way") if fails else None,
        )


def test_who_does_not_reach_them_is_asked_again() -> None:
    coordinator: Any = _Coordinator({0: 0, 2: 2})
    reach.wait_until_reached(coordinator, [0, 2], reach.new_probe([]))
    assert coordinator.calls == {0: 1, 2: 3}


def test_nobody_is_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "_MOST_SECONDS", 0.2)
    coordinator: Any = _Coordinator({0: 0, 1: float("inf")})
    reach.wait_until_reached(coordinator, [0, 1], reach.new_probe([]))
    assert coordinator.calls == {0: 1, 1: 1}


def test_a_probe_needs_each_parameter_server_and_is_traced_once() -> None:
    devices = ["/device:CPU:0", "/job:localhost/device:CPU:0"]
    probe: Any = reach.new_probe(devices)
    for _ in range(2):
        assert float(probe()) > 0
    assert probe.experimental_get_tracing_count() == 1
    graph = probe.get_concrete_function().graph
    asked = [op for op in graph.get_operations() if op.type == "Timestamp"]
    assert [op.device for op in asked] == devices

"""Tests of the wait for busy workers, and of the error that names them."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.calls.bounded_calls import Outcome
from tfps_plugin.cluster.chief import free_workers
from tfps_plugin.cluster.spec import Task

# This process, by its name without a cluster.
_FREE = Task("localhost", 0, "w0:1")
_BUSY = Task("worker", 1, "w1:1")
_HANGING = Task("worker", 2, "w2:1")


def test_a_worker_with_a_thread_to_spare_is_not_waited_for() -> None:
    free_workers.wait_for([_FREE], 30.0)


class _World:
    """Workers that run nothing, or do not even answer, and the time.

    Attributes:
        asked: The workers that were tried and the seconds, in order.
        hanging: Workers that answer no probe.
        probed: The workers of each probe.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[list[Task], float]] = []
        self.hanging: set[Task] = set()
        self.probed: list[list[Task]] = []
        self._now = 100.0

    def monotonic(self) -> float:
        return self._now

    def call_all(
        self,
        function: Callable[[Task], None],
        tasks: Iterable[Task],
        seconds: float,
    ) -> dict[Task, Outcome[Any]]:
        self.asked.append((list(tasks), seconds))
        outcomes: dict[Task, Outcome[Any]] = {
            task: Outcome(error=None if task == _FREE else TimeoutError())
            for task in self.asked[-1][0]
        }
        if any(outcome.error for outcome in outcomes.values()):
            self._now += seconds
        return outcomes

    def answering(self, tasks: list[Task], seconds: float) -> list[Task]:
        self.probed.append(tasks)
        if self.hanging.intersection(tasks):
            self._now += seconds
        return [task for task in tasks if task not in self.hanging]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> _World:
    world = _World()
    monkeypatch.setattr(bounded_calls, "call_all", world.call_all)
    monkeypatch.setattr(free_workers, "time", world)
    return world


@pytest.mark.parametrize("timeout_seconds", [5.0, 11.0, 40.0])
@pytest.mark.parametrize("is_probed", [True, False])
def test_who_runs_nothing_is_named_at_the_deadline(
    world: _World,
    caplog: pytest.LogCaptureFixture,
    timeout_seconds: float,
    is_probed: bool,
) -> None:
    with pytest.raises(errors.ClusterStartTimeoutError) as raised:
        free_workers.wait_for(
            [_FREE, _BUSY],
            timeout_seconds,
            world.answering if is_probed else None,
        )
    text = str(raised.value)
    assert "worker 1 at w1:1" in text
    assert "w0:1" not in text
    assert f"timeout_seconds={timeout_seconds:g}" in text
    waited_seconds = sum(seconds for _, seconds in world.asked)
    assert waited_seconds == pytest.approx(timeout_seconds)
    # A long wait is explained.
    assert ("worker 1 at w1:1" in caplog.text) == (timeout_seconds > 10.0)
    assert [tasks for tasks, _ in world.asked[1:]] == [[_BUSY]] * (
        len(world.asked) - 1
    )
    assert bool(world.probed) == is_probed


@pytest.mark.parametrize("timeout_seconds", [5.0, 11.0, 40.0])
@pytest.mark.parametrize("with_busy", [True, False])
def test_who_hangs_meanwhile_is_neither_waited_for_nor_taken_for_busy(
    world: _World,
    caplog: pytest.LogCaptureFixture,
    timeout_seconds: float,
    with_busy: bool,
) -> None:
    world.hanging = {_HANGING}
    begun = world.monotonic()
    if with_busy:
        with pytest.raises(errors.ClusterStartTimeoutError) as raised:
            free_workers.wait_for(
                [_BUSY, _HANGING], timeout_seconds, world.answering
            )
        assert "worker 1 at w1:1" in str(raised.value)
        assert "w2:1" not in str(raised.value)
        assert world.monotonic() - begun == pytest.approx(timeout_seconds)
    else:
        free_workers.wait_for([_HANGING], timeout_seconds, world.answering)
        assert world.monotonic() - begun <= min(12.0, timeout_seconds)
        assert not caplog.text
    assert "w2:1" not in caplog.text


@pytest.mark.parametrize("passed_seconds", [3.0, 100.0])
def test_time_that_has_passed_counts(
    world: _World, passed_seconds: float
) -> None:
    begun = world.monotonic()
    with pytest.raises(errors.ClusterStartTimeoutError) as raised:
        free_workers.wait_for(
            [_BUSY], 5.0, world.answering, since=begun - passed_seconds
        )
    assert "timeout_seconds=5 " in str(raised.value).replace(".", " ")
    waited_seconds = world.monotonic() - begun
    assert waited_seconds == pytest.approx(max(0.5, 5.0 - passed_seconds))


def test_nothing_is_traced_once_it_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free_workers.prepare(30.0)

    def refuse(*_: object) -> None:
        raise AssertionError("A function would be made known to all tasks.")

    monkeypatch.setattr(tf, "function", refuse)
    free_workers.wait_for([_FREE], 30.0)

"""Workers that run nothing else are waited for, and named in the end."""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import bounded_calls
from tfps_plugin.cluster import free_workers
from tfps_plugin.cluster.bounded_calls import Outcome
from tfps_plugin.cluster.spec import Task

# This process, by the name that it has alone.
_FREE = Task("localhost", 0, "w0:1")
_BUSY = Task("worker", 1, "w1:1")


def test_a_worker_with_a_thread_to_spare_is_not_waited_for() -> None:
    free_workers.wait_for([_FREE], 30.0)


@pytest.mark.parametrize("timeout_seconds", [5.0, 40.0])
def test_who_runs_nothing_is_named_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    timeout_seconds: float,
) -> None:
    asked: list[tuple[list[Task], float]] = []

    def call_all(
        function: Callable[[Task], None], tasks: Iterable[Task], seconds: float
    ) -> dict[Task, Outcome[Any]]:
        asked.append((list(tasks), seconds))
        return {
            task: Outcome(error=TimeoutError() if task == _BUSY else None)
            for task in asked[-1][0]
        }

    monkeypatch.setattr(bounded_calls, "call_all", call_all)
    with pytest.raises(errors.ClusterStartTimeoutError) as raised:
        free_workers.wait_for([_FREE, _BUSY], timeout_seconds)
    text = str(raised.value)
    assert "worker 1 at w1:1" in text
    assert "w0:1" not in text
    assert f"start_timeout_seconds={timeout_seconds:g}" in text
    assert sum(seconds for _, seconds in asked) == timeout_seconds
    # Who waits for long is told why.
    assert ("worker 1 at w1:1" in caplog.text) == (timeout_seconds > 10.0)
    assert [tasks for tasks, _ in asked[1:]] == [[_BUSY]] * (len(asked) - 1)

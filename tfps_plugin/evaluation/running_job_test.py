import json
import os
import types
from collections.abc import Callable
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import health
from tfps_plugin.cluster.serving import job_pipe
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task
from tfps_plugin.evaluation import running_job

_CLUSTER = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1", "d:1"]}


def _environ(job: str) -> dict[str, str]:
    config = {"cluster": _CLUSTER, "task": {"type": job, "index": 0}}
    return {"TF_CONFIG": json.dumps(config)}


def _owner(is_over: Callable[[], bool]) -> Any:
    """Returns the object that a method belongs to; None for a function."""
    return getattr(is_over, "__self__", None)


def test_by_itself_it_follows_no_job() -> None:
    for environ in ({}, _environ("chief"), {job_pipe.VARIABLE: "987654"}):
        is_over = running_job.find(environ)
        assert not isinstance(_owner(is_over), running_job.ProbedJob)
        assert not is_over()


def test_an_evaluator_asks_the_tasks_of_its_cluster() -> None:
    is_over = running_job.find(_environ("evaluator"))
    assert isinstance(_owner(is_over), running_job.ProbedJob)


def test_a_launched_job_is_over_when_the_launcher_says_so() -> None:
    ours, its = os.pipe()
    try:
        is_over = running_job.find(
            {**_environ("evaluator"), job_pipe.VARIABLE: str(ours)}
        )
        assert not is_over()
        os.close(its)
        assert is_over()
    finally:
        os.close(ours)


@pytest.mark.parametrize("alive", ["a:1", "d:1", None])
def test_a_job_lives_as_long_as_its_chief_or_a_ps(
    alive: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = {"a:1"}
    asked = []

    def probe(task: Task, timeout_seconds: float) -> health.TaskStatus:
        asked.append(task.address)
        if task.address not in answering:
            raise errors.TaskUnreachableError(
                "no", address=task.address, reason="no"
            )
        return health.TaskStatus((), 1)

    monkeypatch.setattr(health, "probe_task", probe)
    clock = [0.0]
    monkeypatch.setattr(
        running_job, "time", types.SimpleNamespace(monotonic=lambda: clock[0])
    )
    job = running_job.ProbedJob(ClusterSpec.from_dict(_CLUSTER))
    assert not job.is_over()
    answering.clear()
    answering.update({alive} if alive else ())
    for clock[0] in range(1, 59):
        assert not job.is_over()
    for clock[0] in range(59, 70):
        is_over = job.is_over()
    assert is_over == (alive is None)
    # Workers come and go; nobody else has to be asked.
    assert "b:1" not in asked

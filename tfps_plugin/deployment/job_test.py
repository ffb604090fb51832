"""Tests of the description of a job."""

from typing import Any

import pytest

from tfps_plugin.deployment import job as jobs
from tfps_plugin.deployment.testing import make_job


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": "Ranking"}, "--name 'Ranking'"),
        ({"name": ""}, "--name ''"),
        ({"name": "a" * 64}, "at most 63"),
        ({"name": "-a"}, "--name '-a'"),
        ({"name": "7days"}, "begin with a letter"),
        ({"namespace": "My_Space"}, "--namespace 'My_Space'"),
        ({"script": ""}, "SCRIPT is empty"),
        ({"checkpoint_path": "checkpoints"}, "must be absolute"),
        ({"port": 80}, "--port 80"),
        ({"port": 65536}, "--port 65536"),
        ({"environment": (("1A", ""),)}, "'1A'"),
        ({"environment": (("TF_CONFIG", "{}"),)}, "TF_CONFIG, which is set"),
        ({"environment": (("A", "1"), ("A", "2"))}, "--env A="),
        ({"environment": (("PYTHONUNBUFFERED", ""),)}, "which is set already"),
    ],
)
def test_what_cannot_run_is_refused(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=r"Received|Expected") as error:
        make_job(**options)
    assert complaint in str(error.value)


def test_commands() -> None:
    job = make_job(drain_seconds=60)
    assert job.command("chief") == ("python", "train.py", "--epochs", "3")
    assert job.command("evaluator") == job.command("chief")
    assert job.command("ps") == ("tfps", "serve", "--drain-seconds=60")
    assert job.command("worker") == job.command("ps")


def test_the_grace_period_is_longer_than_a_worker_needs() -> None:
    assert make_job(drain_seconds=60).grace_seconds > 60


def test_tasks() -> None:
    job = make_job(workers=2, ps=1, evaluator=True)
    assert [(group.kind, index) for group, index in job.tasks()] == [
        ("chief", 0),
        ("ps", 0),
        ("worker", 0),
        ("worker", 1),
        ("evaluator", 0),
    ]
    assert job.has_evaluator
    assert not make_job().has_evaluator


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("/app/Two_Tower model.py", "two-tower-model"),
        ("7days.py", "days"),
        ("_.py", "tfps"),
        ("run", "run"),
    ],
)
def test_the_default_name_is_that_of_the_script(script: str, name: str) -> None:
    assert jobs.default_name(script) == name
    make_job(name=name)

"""Tests of `tfps.init()` where it returns; integration_tests has the rest."""

import json

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import task
from tfps_plugin.cluster.serving import task_server
from tfps_plugin.cluster.spec import TaskConfig

_CLUSTER = {"worker": ["a:1"], "ps": ["b:1"]}


def _be(monkeypatch: pytest.MonkeyPatch, job: str, index: int = 0) -> None:
    config = {"cluster": _CLUSTER, "task": {"type": job, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_without_tf_config_this_is_the_chief(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert task.init() == task.RunningTask("chief", 0)


@pytest.mark.parametrize(
    ("job", "index"), [("chief", 0), ("evaluator", 0), ("evaluator", 2)]
)
def test_programs_go_on(
    monkeypatch: pytest.MonkeyPatch, job: str, index: int
) -> None:
    _be(monkeypatch, job, index)
    assert task.init() == task.RunningTask(job, index)


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_servers_serve(monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    def serve(config: TaskConfig, **options: float) -> None:
        assert config.job == job
        assert options == {
            "chief_start_timeout_seconds": 1.0,
            "chief_grace_seconds": 2.0,
            "drain_seconds": 3.0,
        }
        raise SystemExit(0)

    monkeypatch.setattr(task_server, "serve", serve)
    _be(monkeypatch, job)
    with pytest.raises(SystemExit):
        task.init(
            chief_start_timeout_seconds=1.0,
            chief_grace_seconds=2.0,
            drain_seconds=3.0,
        )


def test_a_bad_tf_config_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _be(monkeypatch, "worker", 7)
    with pytest.raises(
        errors.ClusterConfigurationError, match=r"task\.index=7"
    ):
        task.init()

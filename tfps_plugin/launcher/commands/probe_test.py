"""Tests of `tfps probe`, with a task that is only made up."""

import json

import grpc
import pytest
from click.testing import CliRunner
from click.testing import Result

from tfps_plugin.cluster import health
from tfps_plugin.cluster.health import TaskStatus
from tfps_plugin.cluster.machine.ports import reserved_port
from tfps_plugin.launcher.cli import main

_WORKER = "/job:worker/replica:0/task:1"


def _run(*arguments: str, config: object = None) -> Result:
    text = "" if config is None else json.dumps(config)
    return CliRunner().invoke(
        main, ["probe", *arguments], env={"TF_CONFIG": text}
    )


def _config(job: str, index: int) -> object:
    return {
        "cluster": {
            "worker": ["far-away:2222", "elsewhere:4000"],
            "ps": ["nowhere:2222"],
        },
        "task": {"type": job, "index": index},
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the addresses that are asked; worker 1 answers at all of them."""
    addresses: list[str] = []

    def probe(address: str, timeout_seconds: float) -> TaskStatus:
        addresses.append(address)
        return TaskStatus((f"{_WORKER}/device:CPU:0",), 1)

    monkeypatch.setattr(health, "probe", probe)
    return addresses


def test_a_task_is_asked_on_its_own_machine(asked: list[str]) -> None:
    result = _run(config=_config("worker", 1))
    assert (result.exit_code, result.output) == (0, "worker 1 answers.\n")
    assert asked == ["127.0.0.1:4000"]


def test_another_task_in_its_place_is_no_answer(asked: list[str]) -> None:
    result = _run(config=_config("ps", 0))
    assert result.exit_code != 0
    assert "calls itself" in result.output
    assert asked == ["127.0.0.1:2222"]


def test_an_address_is_asked(asked: list[str]) -> None:
    result = _run("somewhere:3000")
    assert result.exit_code == 0
    assert result.output == f"{_WORKER} answers at somewhere:3000.\n"
    assert asked == ["somewhere:3000"]


def test_without_an_answer_it_fails() -> None:
    with reserved_port() as port:
        result = _run("--timeout-seconds", "0.5", f"127.0.0.1:{port}")
    assert result.exit_code == 1
    assert f"127.0.0.1:{port} does not answer" in result.stderr


def test_a_server_that_is_no_task_is_no_answer() -> None:
    from concurrent import futures

    with futures.ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            result = _run(f"127.0.0.1:{port}")
        finally:
            server.stop(None).wait()
    assert result.exit_code == 1
    assert "not a TensorFlow task" in result.stderr


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (None, "Expected an ADDRESS, or TF_CONFIG"),
        (_config("chief", 0), "has no task chief 0"),
        (_config("evaluator", 0), "has no task evaluator 0"),
        (_config("worker", 2), "out of range"),
        ({}, "TF_CONFIG has no cluster"),
    ],
)
def test_a_task_that_is_none_is_refused(config: object, complaint: str) -> None:
    result = _run(config=config)
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.split())

"""Tests of probes, with servers that can only answer a probe."""

import contextlib
import logging
import threading
from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import health
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.quorum import Quorum
from tfps_plugin.cluster.spec import Task

_INCARNATION = 2**63 + 11


def _status(*device_names: str) -> bytes:
    response = health._GetStatusResponse()
    for name in device_names:
        response.device_attributes.add(name=name, incarnation=_INCARNATION)
    return response.SerializeToString()


def _device(job: str, index: int, device: str = "CPU:0") -> str:
    return f"/job:{job}/replica:0/task:{index}/device:{device}"


@contextlib.contextmanager
def _server(answer: Callable[[], bytes]) -> Iterator[str]:
    """Runs a server that answers probes; yields its address."""
    handler = grpc.unary_unary_rpc_method_handler(lambda _, __: answer())
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "tensorflow.WorkerService", {"GetStatus": handler}
                )
            ]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def _worker(address: str) -> Task:
    return Task("worker", 1, address)


@pytest.fixture
def nobody() -> Iterator[str]:
    """Yields an address at which nothing listens."""
    with ports.reserved_port() as port:
        yield f"127.0.0.1:{port}"


def test_a_task_tells_its_devices_and_incarnation() -> None:
    names = (_device("worker", 1), _device("worker", 1, "GPU:0"))
    with _server(lambda: _status(*names)) as address:
        status = health.probe(address, 10.0)
    assert status == health.TaskStatus(names, _INCARNATION)
    assert status.task_name == "/job:worker/replica:0/task:1"
    assert status.gpu_names == names[1:]


def test_processes_tell_which_tasks_they_are(nobody: str) -> None:
    with _server(lambda: _status(_device("ps", 3))) as address:
        names = health.names_at([nobody, address], 10.0)
    assert names == {address: "/job:ps/replica:0/task:3"}


def test_nobody_there(nobody: str) -> None:
    with pytest.raises(errors.TaskUnreachableError) as caught:
        health.probe(nobody, 10.0)
    assert caught.value.address == nobody
    assert caught.value.reason == "Connection refused"


def test_an_unknown_host() -> None:
    with pytest.raises(errors.TaskUnreachableError, match=r"no\.invalid"):
        health.probe("no.invalid:1", 10.0)


def test_a_task_that_does_not_answer_in_time() -> None:
    gate = threading.Event()

    def hang() -> bytes:
        gate.wait(10)
        return b""

    with _server(hang) as address:
        with pytest.raises(errors.TaskUnreachableError) as caught:
            health.probe(address, 0.1)
        gate.set()
    assert caught.value.reason == "no answer within 0.1 s"


@pytest.mark.parametrize("answer", [b"", b"not a message"])
def test_something_else_answers(answer: bytes) -> None:
    with (
        _server(lambda: answer) as address,
        pytest.raises(errors.TaskUnreachableError) as caught,
    ):
        health.probe(address, 10.0)
    assert caught.value.reason == "what answers there is not a TensorFlow task"


def test_another_server_of_grpc() -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with pytest.raises(errors.TaskUnreachableError) as caught:
            health.probe(f"127.0.0.1:{port}", 10.0)
        server.stop(None).wait()
    assert caught.value.reason == "what answers there is not a TensorFlow task"


def test_another_task_answers() -> None:
    with (
        _server(lambda: _status(_device("ps", 0))) as address,
        pytest.raises(errors.TaskUnreachableError) as caught,
    ):
        health.probe_task(_worker(address), 10.0)
    assert "/job:ps/replica:0/task:0" in caught.value.reason


def test_waiting_ends_at_once_if_another_task_answers(nobody: str) -> None:
    with (
        _server(lambda: _status(_device("ps", 0))) as address,
        pytest.raises(errors.ClusterConfigurationError) as caught,
    ):
        health.wait_until_ready([Task("ps", 1, nobody), _worker(address)], 60.0)
    assert f"At {address}, worker 1 was expected" in str(caught.value)


def test_waits_until_all_answer() -> None:
    answers = iter([b"", b"", _status(_device("worker", 1))])
    with _server(lambda: next(answers)) as address:
        ready = health.wait_until_ready([_worker(address)], 60.0)
    assert ready[_worker(address)].incarnation == _INCARNATION


def test_the_deadline_names_every_task_that_is_missing(nobody: str) -> None:
    missing = Task("ps", 3, nobody)
    with (
        _server(lambda: _status(_device("worker", 1))) as address,
        pytest.raises(errors.ClusterStartTimeoutError) as caught,
    ):
        health.wait_until_ready([_worker(address), missing], 0.3)
    text = str(caught.value)
    assert "1 of 2 tasks did not answer within 0.3 s" in text
    assert f"ps 3 at {nobody}: Connection refused" in text
    assert "worker 1" not in text
    assert "What to do" in text


def test_waiting_can_be_stopped(nobody: str) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(errors.ClusterStartTimeoutError):
        health.wait_until_ready([_worker(nobody)], 60.0, stop=stop)


def test_waiting_ends_with_what_the_check_raises(nobody: str) -> None:
    def check() -> None:
        raise errors.TaskStartError("it is dead")

    with pytest.raises(errors.TaskStartError):
        health.wait_until_ready([_worker(nobody)], 60.0, check=check)


def test_the_log_tells_who_is_waited_for(
    nobody: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(health, "_PROGRESS_INTERVAL_SECONDS", 0.1)
    with (
        caplog.at_level(logging.INFO, "tfps_plugin.cluster"),
        pytest.raises(errors.ClusterStartTimeoutError),
    ):
        health.wait_until_ready([_worker(nobody)], 0.6)
    assert "0 of 1 tasks answer after 0 s; waiting for worker 1" in caplog.text
    assert f"worker 1 at {nobody}: Connection refused." in caplog.text
    # At 0.1 s and 0.3 s, but not at each of the shorter intervals.
    assert len(caplog.records) <= 2


def test_a_line_of_the_log_names_a_few_tasks(nobody: str) -> None:
    reasons = {Task("worker", i, nobody): "refused" for i in range(6)}
    line = health._brief(reasons)
    assert "worker 3 at" in line
    assert line.endswith("; and 2 more")


def test_every_round_is_told() -> None:
    answers = iter([b"", _status(_device("worker", 1))])
    rounds = []
    with _server(lambda: next(answers)) as address:
        health.wait_until_ready(
            [_worker(address)],
            60.0,
            on_round=lambda num_ready, seconds: rounds.append(num_ready),
        )
    assert rounds == [0, 1]


def test_no_tasks_are_ready_at_once() -> None:
    assert health.wait_until_ready([], 1.0) == {}


def test_enough_tasks_end_the_wait_and_the_log_names_the_others(
    nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    missing = Task("worker", 0, nobody)
    with _server(lambda: _status(_device("worker", 1))) as address:
        present = _worker(address)
        tasks = [missing, present]
        ready = health.wait_until_ready(
            tasks, 30.0, quorum=Quorum(tasks, min_workers=1)
        )
    assert list(ready) == [present]
    (line,) = caplog.messages
    assert "Starting with 1 of 2 tasks" in line
    assert f"{missing} at {nobody}: " in line


def test_the_deadline_says_how_many_were_expected(nobody: str) -> None:
    tasks = [_worker(nobody)]
    with pytest.raises(
        errors.ClusterStartTimeoutError, match=r"at least 1 of .*Received:"
    ):
        health.wait_until_ready(tasks, 0.01, quorum=Quorum(tasks, 1))

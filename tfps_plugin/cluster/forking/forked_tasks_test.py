"""Tests of tasks that are forks of one process."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import health
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.forking.forked_tasks import ForkedTask
from tfps_plugin.cluster.forking.forked_tasks import ForkedTasks
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.serving.chief_watch import EXIT_NO_CHIEF
from tfps_plugin.cluster.spec import ClusterSpec

_TIMEOUT_SECONDS = 30.0
_ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.fixture
def tasks(tmp_path: pathlib.Path) -> Iterator[ForkedTasks]:
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log", _TIMEOUT_SECONDS)
    yield tasks
    tasks.close()


def _start(
    tasks: ForkedTasks, log: pathlib.Path, cluster: ClusterSpec, index: int
) -> ForkedTask:
    config = tf_config.to_tf_config(cluster, "ps", index)
    return tasks.start(
        [], {"TF_CONFIG": config, "TF_GRPC_REUSE_PORT": "1"}, log
    )


@pytest.fixture
def cluster() -> Iterator[ClusterSpec]:
    with (
        ports.reserved_port() as first,
        ports.reserved_port() as second,
        ports.reserved_port() as third,
    ):
        yield ClusterSpec(
            (f"{ports.LOOPBACK}:{first}",),
            (f"{ports.LOOPBACK}:{second}", f"{ports.LOOPBACK}:{third}"),
        )


def test_forks_serve_as_different_incarnations(
    tasks: ForkedTasks, cluster: ClusterSpec, tmp_path: pathlib.Path
) -> None:
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    started = [_start(tasks, logs[i], cluster, i) for i in range(2)]
    statuses = health.wait_until_ready(
        cluster.parameter_servers, _TIMEOUT_SECONDS
    )
    # TensorFlow draws them at random: forks must not share a generator.
    incarnations = {status.incarnation for status in statuses.values()}
    assert len(incarnations) == 2
    started[1].kill()
    assert started[1].wait(_TIMEOUT_SECONDS) == -signal.SIGKILL
    assert started[1].poll() == started[1].returncode == -signal.SIGKILL
    assert started[0].poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        started[0].wait(0.0)
    # Nobody else has its number: this reaches nobody.
    started[1].kill()
    again = _start(tasks, logs[1], cluster, 1)
    statuses = health.wait_until_ready(
        cluster.parameter_servers, _TIMEOUT_SECONDS
    )
    incarnations |= {status.incarnation for status in statuses.values()}
    assert len(incarnations) == 3
    assert logs[1].read_text().count("ps 1 serves at") == 2
    assert logs[0].read_text().count("ps 0 serves at") == 1
    for task in (started[0], again):
        task.terminate()
        assert task.wait(_TIMEOUT_SECONDS) == 128 + signal.SIGTERM


def test_a_task_that_cannot_serve_says_so_in_its_log(
    tasks: ForkedTasks, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "task.log"
    assert tasks.start([], {}, log).wait(_TIMEOUT_SECONDS) == 1
    assert "TF_CONFIG is not set" in log.read_text()
    # argparse's own exit code.
    assert tasks.start(["--astray"], {}, log).wait(_TIMEOUT_SECONDS) == 2
    assert "--astray" in log.read_text()


def test_tasks_end_with_the_process_that_forks_them(
    tasks: ForkedTasks, cluster: ClusterSpec, tmp_path: pathlib.Path
) -> None:
    task = _start(tasks, tmp_path / "task.log", cluster, 0)
    tasks._process.kill()
    assert task.wait(_TIMEOUT_SECONDS) == EXIT_NO_CHIEF
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while pathlib.Path(f"/proc/{task.pid}").exists():
        assert time.monotonic() < deadline, "it goes on"
        threading.Event().wait(0.01)
    for _ in range(2):
        with pytest.raises(errors.TaskStartError, match=r"has ended|Broken"):
            _start(tasks, tmp_path / "task.log", cluster, 0)
    task.kill()


def test_running_tasks_end_when_it_is_closed(
    cluster: ClusterSpec, tmp_path: pathlib.Path
) -> None:
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log", _TIMEOUT_SECONDS)
    task = _start(tasks, tmp_path / "task.log", cluster, 0)
    tasks.close()
    assert task.wait(_TIMEOUT_SECONDS) == EXIT_NO_CHIEF


def test_why_tensorflow_was_not_loaded(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log", _TIMEOUT_SECONDS)
    try:
        with pytest.raises(errors.TaskStartError) as caught:
            tasks.start([], {}, tmp_path / "task.log")
    finally:
        tasks.close()
    assert "no such library" in str(caught.value)


def test_a_process_that_does_not_answer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(
        "tfps_plugin.cluster.forking.forked_tasks._STOP_TIMEOUT_SECONDS", 0.1
    )
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log", 0.1)
    try:
        with pytest.raises(errors.TaskStartError, match="Empty"):
            tasks.start([], {}, tmp_path / "task.log")
    finally:
        tasks.close()

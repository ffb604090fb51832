"""Tests of tasks that are forks of one process."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
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
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log")
    yield tasks
    tasks.close()


def _start(
    tasks: ForkedTasks,
    log: pathlib.Path,
    cluster: ClusterSpec,
    index: int,
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> ForkedTask:
    config = tf_config.to_tf_config(cluster, "ps", index)
    environ = {"TF_CONFIG": config, "TF_GRPC_REUSE_PORT": "1"}
    return tasks.start([], environ, log, timeout_seconds)


def _await(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it never becomes so"
        threading.Event().wait(0.01)


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
    assert all("fork_server" in _command(task) for task in started)
    # Said when it already answers.
    _await(lambda: "ps 0 serves at" in logs[0].read_text())
    _await(lambda: "ps 1 serves at" in logs[1].read_text())
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
    _await(lambda: logs[1].read_text().count("ps 1 serves at") == 2)
    assert logs[0].read_text().count("ps 0 serves at") == 1
    for task in (started[0], again):
        task.terminate()
        assert task.wait(_TIMEOUT_SECONDS) == 128 + signal.SIGTERM


def test_a_task_that_cannot_serve_says_so_in_its_log(
    tasks: ForkedTasks, tmp_path: pathlib.Path
) -> None:
    log = tmp_path / "task.log"
    started = tasks.start([], {}, log, _TIMEOUT_SECONDS)
    assert started.wait(_TIMEOUT_SECONDS) == 1
    assert "TF_CONFIG is not set" in log.read_text()
    started = tasks.start(["--astray"], {}, log, _TIMEOUT_SECONDS)
    # argparse's own exit code.
    assert started.wait(_TIMEOUT_SECONDS) == 2
    assert "--astray" in log.read_text()


def test_tasks_end_with_the_process_that_forks_them(
    tasks: ForkedTasks, cluster: ClusterSpec, tmp_path: pathlib.Path
) -> None:
    task = _start(tasks, tmp_path / "task.log", cluster, 0)
    tasks._process.kill()
    assert task.wait(_TIMEOUT_SECONDS) == EXIT_NO_CHIEF
    _await(lambda: not _runs(task.pid))
    assert tasks.is_over
    for _ in range(2):
        with pytest.raises(errors.TaskStartError, match="has ended"):
            _start(tasks, tmp_path / "task.log", cluster, 0)
    task.kill()


def _runs(pid: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status


def test_a_default_timeout_of_sockets_is_not_its_own(
    cluster: ClusterSpec, tmp_path: pathlib.Path
) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.05)
    try:
        tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log")
    finally:
        socket.setdefaulttimeout(before)
    try:
        # Loading TensorFlow takes longer than that.
        task = _start(tasks, tmp_path / "task.log", cluster, 0)
        assert task.poll() is None
        task.kill()
        assert task.wait(_TIMEOUT_SECONDS) == -signal.SIGKILL
    finally:
        tasks.close()


def test_a_task_whose_start_was_given_up_is_killed(
    cluster: ClusterSpec, tmp_path: pathlib.Path
) -> None:
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log")
    try:
        # TensorFlow is still being loaded.
        with pytest.raises(errors.ClusterStartTimeoutError, match="no answer"):
            _start(tasks, tmp_path / "0.log", cluster, 0, 0.01)
        task = _start(tasks, tmp_path / "1.log", cluster, 1)
        (of_tasks,) = pathlib.Path(f"/proc/{tasks._process.pid}/task").glob(
            "*/children"
        )
        _await(lambda: of_tasks.read_text().split() == [str(task.pid)])
    finally:
        tasks.close()


def test_beside_another_thread_tasks_load_tensorflow_for_themselves(
    cluster: ClusterSpec, tmp_path: pathlib.Path
) -> None:
    # Python imports it when it starts.
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\n"
        "never = threading.Event()\n"
        "threading.Thread(target=never.wait, daemon=True).start()\n"
    )
    path = os.pathsep.join([str(tmp_path), _ENVIRON["PYTHONPATH"]])
    tasks = ForkedTasks(
        {**_ENVIRON, "PYTHONPATH": path}, tmp_path / "server.log"
    )
    log = tmp_path / "task.log"
    try:
        task = _start(tasks, log, cluster, 1)
        health.wait_until_ready(cluster.parameter_servers[1:], _TIMEOUT_SECONDS)
        assert "task_server" in _command(task)
        _await(lambda: "ps 1 serves at" in log.read_text())
        task.terminate()
        assert task.wait(_TIMEOUT_SECONDS) == 128 + signal.SIGTERM
    finally:
        tasks.close()


def _command(task: ForkedTask) -> str:
    return pathlib.Path(f"/proc/{task.pid}/cmdline").read_text()


def test_running_tasks_end_when_it_is_closed(
    cluster: ClusterSpec, tmp_path: pathlib.Path
) -> None:
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log")
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
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log")
    try:
        with pytest.raises(errors.TaskStartError) as caught:
            tasks.start([], {}, tmp_path / "task.log", _TIMEOUT_SECONDS)
    finally:
        tasks.close()
    assert "no such library" in str(caught.value)
    assert "exit code 3" in str(caught.value)


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
    tasks = ForkedTasks(_ENVIRON, tmp_path / "server.log")
    try:
        with pytest.raises(errors.ClusterStartTimeoutError, match="no answer"):
            tasks.start([], {}, tmp_path / "task.log", 0.1)
    finally:
        tasks.close()

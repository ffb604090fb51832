"""Tests of a local cluster whose tasks cannot start.

Its tasks here are shell scripts; integration_tests/cluster_test.py tests it
with real tasks.
"""

import pathlib
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from collections.abc import Sequence

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import local_cluster
from tfps_plugin.cluster.local_cluster import LocalCluster


@pytest.fixture
def task_script(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """Returns the path of a program that runs instead of each task."""
    path = tmp_path / "task"
    path.touch(0o755)

    class Scripts:
        """Starts the program, without a fork."""

        is_over = False

        def __init__(self, environ: Mapping[str, str], *_: object) -> None:
            self._environ = environ

        def start(
            self,
            arguments: Sequence[str],
            environ: Mapping[str, str],
            log_path: pathlib.Path,
            timeout_seconds: float,
        ) -> subprocess.Popen[bytes]:
            with log_path.open("ab") as log:
                return subprocess.Popen(
                    [str(path), *arguments],
                    env={**self._environ, **environ},
                    stdout=log,
                    stderr=log,
                )

        def close(self) -> None:
            pass

    monkeypatch.setattr(local_cluster, "ForkedTasks", Scripts)
    return path


def test_a_task_that_dies_at_the_start_is_quoted(
    task_script: pathlib.Path,
) -> None:
    task_script.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    with pytest.raises(errors.TaskStartError) as caught:
        LocalCluster(1, 1)
    # The first task that is found dead.
    assert re.match(r"(worker|ps) 0 at 127\.0\.0\.1:", str(caught.value))
    assert "exit code 3" in str(caught.value)
    assert "out of luck" in str(caught.value)


def test_a_task_that_does_not_start_in_time(
    task_script: pathlib.Path,
) -> None:
    task_script.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(errors.ClusterStartTimeoutError, match="2 of 2 tasks"):
        LocalCluster(1, 1, start_timeout_seconds=0.3)


def test_the_life_of_a_task(task_script: pathlib.Path) -> None:
    task_script.write_text("#!/bin/sh\necho $1 $2 $3 $DRY\nexec sleep 60\n")
    with LocalCluster(1, 1, wait=False, environ={"DRY": "run"}) as cluster:
        with pytest.raises(errors.TaskStartError, match="still runs"):
            cluster.start("worker", 0)
        first = cluster.process("worker", 0)
        cluster.kill("worker", 0)
        assert first.returncode == -9
        with pytest.raises(errors.TaskStartError, match="SIGKILL"):
            cluster.wait_until_ready(10.0)
        cluster.start("worker", 0)
        assert cluster.process("worker", 0) is not first
        cluster.kill("worker", 0)
        assert cluster.process("ps", 0).poll() is None
        with pytest.raises(errors.ClusterConfigurationError, match="worker 1"):
            cluster.kill("worker", 1)
    assert cluster.process("ps", 0).poll() is not None
    with pytest.raises(errors.TaskStartError, match="stopped") as told:
        cluster.start("worker", 0)
    assert "job='worker', index=0. Make another" in str(told.value)
    cluster.stop()


def test_a_task_that_ignores_its_end_is_killed(
    task_script: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tfps_plugin.cluster.local_cluster._STOP_TIMEOUT_SECONDS", 0.2
    )
    ready = task_script.with_name("ready")
    task_script.write_text(
        f"#!/bin/sh\ntrap '' TERM\necho > {ready}.$$\n"
        "while :; do sleep 0.1; done\n"
    )
    cluster = LocalCluster(1, 1, wait=False)
    processes = [cluster.process(job, 0) for job in ("worker", "ps")]
    deadline = time.monotonic() + 20.0
    while len(list(task_script.parent.glob("ready.*"))) < 2:
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
    cluster.stop()
    assert [process.returncode for process in processes] == [-9, -9]


def test_the_end_of_a_fork_of_this_process_ends_no_task(
    task_script: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_script.write_text("#!/bin/sh\nexec sleep 60\n")
    with LocalCluster(1, 1, wait=False) as cluster:
        with monkeypatch.context() as patch:
            # As its exit handlers run there.
            patch.setattr(local_cluster.os, "getpid", lambda: -1)
            cluster.stop()
        assert cluster.process("ps", 0).poll() is None
    assert cluster.process("ps", 0).poll() is not None


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 1)])
def test_a_cluster_needs_tasks_of_both_jobs(sizes: tuple[int, int]) -> None:
    with pytest.raises(errors.ClusterConfigurationError, match="Received: num"):
        LocalCluster(*sizes)

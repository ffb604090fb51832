"""Tests of a task's wait for its end, without a server."""

import logging
import queue
import signal
import socket
import sys
import time
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import health
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.serving import chief_watch
from tfps_plugin.cluster.serving import messages
from tfps_plugin.cluster.serving import task_server
from tfps_plugin.cluster.serving.chief_watch import ChiefWatch
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import TaskConfig

_CONFIG = TaskConfig(ClusterSpec(("a:2",), ("b:1",)), "worker", 0)
_CHIEF = messages.ChiefHere("id", "a:1", 7)


def _watch() -> ChiefWatch:
    return ChiefWatch(
        time.monotonic(),
        chief_start_timeout_seconds=0.1,
        chief_grace_seconds=0.2,
    )


@pytest.fixture
def inbox() -> task_server._Inbox:
    """The messages from the mailbox."""
    return queue.SimpleQueue()


def test_ends_when_told(inbox: task_server._Inbox) -> None:
    inbox.put(_CHIEF)
    inbox.put(messages.JobOver("somebody else"))
    inbox.put(messages.JobOver("id"))
    assert task_server._wait_for_end(_CONFIG, inbox, _watch()).exit_code == 0


def test_ends_without_a_chief(inbox: task_server._Inbox) -> None:
    ending = task_server._wait_for_end(_CONFIG, inbox, _watch())
    assert ending.exit_code == 69
    assert "no chief has connected" in ending.reason


@pytest.mark.parametrize("incarnation", [None, 8])
def test_ends_when_its_chief_is_gone(
    inbox: task_server._Inbox,
    monkeypatch: pytest.MonkeyPatch,
    incarnation: int | None,
) -> None:
    def probe(address: str, timeout_seconds: float) -> health.TaskStatus:
        if incarnation is None:
            raise errors.TaskUnreachableError("gone", address="", reason="")
        return health.TaskStatus(("/job:chief",), incarnation)

    monkeypatch.setattr(health, "probe", probe)
    inbox.put(_CHIEF)
    ending = task_server._wait_for_end(_CONFIG, inbox, _watch())
    assert ending.exit_code == 69
    assert "a:1 has not answered" in ending.reason


def test_goes_on_while_its_chief_answers(
    inbox: task_server._Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_probes = 0

    def probe(address: str, timeout_seconds: float) -> health.TaskStatus:
        nonlocal num_probes
        num_probes += 1
        if num_probes == 3:
            inbox.put(messages.JobOver("id"))
        return health.TaskStatus(("/job:chief",), _CHIEF.incarnation)

    monkeypatch.setattr(health, "probe", probe)
    inbox.put(_CHIEF)
    assert task_server._wait_for_end(_CONFIG, inbox, _watch()).exit_code == 0
    assert num_probes == 3


def test_a_broken_mailbox_is_not_silent(inbox: task_server._Inbox) -> None:
    inbox.put(errors.InternalError("broken"))
    with pytest.raises(errors.InternalError):
        task_server._wait_for_end(_CONFIG, inbox, _watch())


def test_a_missing_chief_is_told(
    inbox: task_server._Inbox,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(chief_watch, "_FIRST_REMINDER_SECONDS", 0.0)
    task_server._wait_for_end(_CONFIG, inbox, _watch())
    assert "no chief has connected yet, after 0 s" in caplog.text
    assert "worker 0 listens at a:2" in caplog.text


def test_a_port_that_is_taken_is_told_before_anything_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ports.REUSE_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "tfps_plugin._compat", None)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        config = TaskConfig(ClusterSpec(("a:2",), (address,)), "ps", 0)
        with pytest.raises(errors.TaskStartError) as caught:
            task_server._start(config)
    assert "ps 0 cannot serve at its address" in str(caught.value)
    assert f"address='{address}': Address already in use" in str(caught.value)


@pytest.mark.parametrize(
    ("level", "expected"), [(logging.NOTSET, True), (logging.ERROR, False)]
)
def test_a_task_is_heard_unless_its_program_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, level: int, expected: bool
) -> None:
    package = logging.getLogger("tfps_plugin")
    before = package.level
    try:
        package.setLevel(level)
        task_server._log_visibly()
        assert package.isEnabledFor(logging.INFO) == expected
    finally:
        package.setLevel(before)


@pytest.mark.parametrize("job", ["chief", "evaluator"])
def test_programs_are_not_served(job: str) -> None:
    config = TaskConfig(ClusterSpec(("a:1",), ("b:1",)), job, 0)
    with pytest.raises(errors.ClusterConfigurationError, match=job):
        task_server.serve(config)


@pytest.mark.parametrize(
    ("arguments", "variable", "expected"),
    [
        ([], "0", None),
        ([], "1", None),
        (["--tune"], "0", True),
        (["--tune", "--cores", "0", "2"], "0", True),
    ],
)
def test_tuning_is_asked_for_by_an_option(
    arguments: list[str],
    variable: str,
    expected: bool | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[dict[str, Any]] = []
    monkeypatch.setenv(
        "TF_CONFIG", tf_config.to_tf_config(_CONFIG.cluster, "worker", 0)
    )
    monkeypatch.setenv("TFPS_TUNE", variable)
    monkeypatch.setattr(
        task_server, "serve", lambda _, **options: received.append(options)
    )
    task_server.main(arguments)
    assert received[0]["tune"] is expected
    assert list(received[0]["cores"]) == [int(n) for n in arguments[2:]]


@pytest.mark.parametrize(
    ("tune", "variable", "expected"),
    [
        (None, "", False),
        (None, "1", True),
        (True, "", True),
        (False, "1", False),
    ],
)
def test_a_task_is_tuned_only_if_asked(
    tune: bool | None,
    variable: str,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[bool] = []

    def start(_: TaskConfig, *, tune: bool, **options: Any) -> None:
        del options
        started.append(tune)
        raise errors.TaskStartError("stop here")

    monkeypatch.setenv("TFPS_TUNE", variable)
    monkeypatch.setattr(task_server, "_start", start)
    monkeypatch.setattr(task_server, "_log_visibly", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(errors.TaskStartError, match="stop here"):
        task_server.serve(_CONFIG, tune=tune)
    assert started == [expected]

"""Tests of the thread that writes checkpoints."""

import threading
from typing import Any

import pytest

from tfps_plugin.cluster.chief import connection
from tfps_plugin.recovery.checkpoints.checkpoint_writer import CheckpointWriter
from tfps_plugin.variables.chief.pending_writes import PendingWrites

_SECONDS = 20.0


class _Pending:
    """A checkpoint whose writing an event lets end."""

    prefix = "/checkpoints/ckpt-1"

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def write(self) -> Any:
        assert self.may_end.wait(_SECONDS)


class _LateThread(threading.Thread):
    """A thread that has started and does not run yet."""

    def start(self) -> None:
        pass


class _NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def _writer() -> tuple[CheckpointWriter, PendingWrites]:
    writer = CheckpointWriter("/checkpoints", _SECONDS, list)
    return writer, connection.present().part(PendingWrites)


def test_a_checkpoint_is_pending_until_it_is_written() -> None:
    writer, writes = _writer()
    pending: Any = _Pending()
    written: list[Any] = []
    writer.write(pending, written.append, in_background=True)
    assert not writes.wait(0.0)
    pending.may_end.set()
    writer.wait()
    assert written == [None]
    assert writes.wait(_SECONDS)
    assert writer.last_error is None


def test_a_checkpoint_is_pending_before_its_thread_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, writes = _writer()
    pending: Any = _Pending()
    pending.may_end.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", _LateThread)
        writer.write(pending, lambda _: None, in_background=True)
        assert not writes.wait(0.0)
        thread: Any = writer._thread
    threading.Thread.start(thread)
    writer.wait()
    assert writes.wait(_SECONDS)


def test_a_failure_is_kept_and_ends_the_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, writes = _writer()
    pending: Any = _Pending()
    pending.may_end.set()
    error = OSError(28, "No space left on device")

    def fail(written: Any) -> None:
        raise error

    writer.write(pending, fail, in_background=False)
    assert writer.last_error is error
    assert writes.wait(0.0)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", _NoThread)
        with pytest.raises(RuntimeError, match="new thread"):
            writer.write(pending, fail, in_background=True)
    assert writes.wait(0.0)

import io
import logging
import pathlib
import sys
import threading
import time

import pytest

from tfps_plugin.cluster.output.followed_logs import FollowedLog
from tfps_plugin.cluster.output.followed_logs import FollowedLogs

_PATIENCE_SECONDS = 10.0


def test_a_log_is_read_as_it_grows(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "log"
    log = FollowedLog(path)
    assert log.read() == []
    with path.open("ab") as file:
        file.write("one\ntw\u00f6".encode()[:-1])
        file.flush()
        assert log.read() == ["one"]
        file.write("\u00f6".encode()[-1:] + b"\nthree")
        file.flush()
        assert log.read() == ["tw\u00f6"]
    assert log.finish() == ["three"]


def test_a_log_that_cannot_be_read_is_read_later(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "log"
    log = FollowedLog(path)
    path.mkdir()
    assert log.read() == []
    path.rmdir()
    path.write_text("one\n")
    assert log.read() == ["one"]


def test_lines_are_shown_with_a_label_while_they_are_written(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", seen)
    paths = {name: tmp_path / name for name in ("ps 0", "worker 0")}
    news = "2026-01-31 10:11:12 INFO worker 0 serves at 127.0.0.1:1."
    with caplog.at_level(logging.DEBUG, "tfps_plugin.cluster"):
        logs = FollowedLogs(paths, "2")
        paths["worker 0"].write_text(f"{news}\nloss 1\n")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not seen.getvalue():
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)
        paths["ps 0"].write_text("the last word")
        logs.close()
    assert seen.getvalue() == "worker 0 | loss 1\nps 0     | the last word\n"
    assert f"worker 0: {news}" in caplog.text


def test_nobody_has_to_see_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text("one\n")
    for nowhere in (None, io.StringIO()):
        if nowhere is not None:
            nowhere.close()
        monkeypatch.setattr(sys, "stderr", nowhere)
        FollowedLogs({"ps 0": path}, "2").close()

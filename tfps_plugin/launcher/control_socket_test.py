"""Tests of requests to a running job."""

import os
import pathlib
import threading
from typing import Any

import pytest

from tfps_plugin.launcher import control_socket
from tfps_plugin.launcher.control_socket import ControlSocket

_TIMEOUT_SECONDS = 30.0


def _take(control: ControlSocket, asked: list[Any]) -> threading.Thread:
    """Answers one request, on a thread."""

    def take() -> None:
        with control.request() as (request, answer):
            asked.append(request)
            answer["text"] = "well"

    thread = threading.Thread(target=take)
    thread.start()
    return thread


def test_a_job_is_found_and_asked() -> None:
    asked: list[Any] = []
    with control_socket.listening() as control:
        path = control_socket.running_jobs()[os.getpid()]
        thread = _take(control, asked)
        assert control_socket.ask(path, {"workers": 3}) == {"text": "well"}
        thread.join(_TIMEOUT_SECONDS)
    assert asked == [{"workers": 3}]
    assert os.getpid() not in control_socket.running_jobs()
    assert not path.parent.exists()


def test_nobody_answers(tmp_path: pathlib.Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        control_socket.ask(tmp_path / "none", {})

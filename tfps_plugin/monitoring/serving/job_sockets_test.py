import os
import pathlib
import socket
import tempfile

import pytest

from tfps_plugin.monitoring.serving import job_sockets

# No process has this number.
_NO_PROCESS = 2**22 + 1


@pytest.fixture(autouse=True)
def folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_job_is_found_until_its_socket_is_removed() -> None:
    path = job_sockets.make(os.getpid())
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert job_sockets.running() == {}
    path.touch()
    assert job_sockets.running() == {os.getpid(): path}
    job_sockets.remove(path)
    assert job_sockets.running() == {}


def test_its_name_leaves_room_in_the_path_of_a_socket(
    folder: pathlib.Path,
) -> None:
    # Folders for temporary files have long names of their own.
    path = job_sockets.make(4_194_304)
    assert len(str(path.relative_to(folder))) <= 36


def test_what_a_killed_chief_has_left_is_removed(folder: pathlib.Path) -> None:
    left = job_sockets.make(_NO_PROCESS)
    living = job_sockets.make(os.getpid())
    assert list(folder.iterdir()) == [living.parent]
    assert left != living


def test_jobs_of_another_machine_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its process ids say nothing here.
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "another")
        path = job_sockets.make(_NO_PROCESS)
        path.touch()
    job_sockets.remove_stale()
    assert path.exists()
    assert job_sockets.running() == {}

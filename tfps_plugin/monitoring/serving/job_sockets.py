"""Sockets of the jobs that run on this machine.

Each chief has a folder in the folder for temporary files, which only its user
may enter. Its name has the process id; in it is the socket.

Machines and containers may share the folder for temporary files, and each has
process ids of its own. So the name also tells whose process id it is.
"""

import hashlib
import os
import pathlib
import shutil
import socket
import tempfile

# Short names: the path of a socket has at most 107 bytes.
_PREFIX = "tfpsjob-"
_NAME = "api"


def make(process_id: int) -> pathlib.Path:
    """Makes the folder of a job.

    Args:
        process_id: That of the chief.

    Returns:
        The path at which to listen.
    """
    remove_stale()
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{_own()}{process_id}-"))
    return folder / _NAME


def remove(path: pathlib.Path) -> None:
    """Removes what `make` has made."""
    shutil.rmtree(path.parent, ignore_errors=True)


def running() -> dict[int, pathlib.Path]:
    """Returns the sockets of the user's jobs, by the chief's process id."""
    return {
        process_id: path
        for process_id, path in _all()
        if _is_alive(process_id) and path.exists()
    }


def remove_stale() -> None:
    """Removes folders of chiefs that were killed."""
    for process_id, path in _all():
        if not _is_alive(process_id):
            remove(path)


def _own() -> str:
    """Returns how names begin of folders whose process ids are known here."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    place = f"{socket.gethostname()} {namespace}"
    mark = hashlib.sha256(place.encode()).hexdigest()[:4]
    return f"{_PREFIX}{mark}-"


def _all() -> list[tuple[int, pathlib.Path]]:
    found = []
    own = _own()
    for folder in pathlib.Path(tempfile.gettempdir()).glob(f"{own}*-*"):
        number = folder.name.removeprefix(own).partition("-")[0]
        try:
            is_own = folder.stat().st_uid == os.getuid()
        except OSError:
            continue  # it has just been removed
        if is_own and number.isdecimal():
            found.append((int(number), folder / _NAME))
    return sorted(found)


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""The lock of an export folder: one program at a time writes to it."""

import contextlib
import errno
import fcntl
import logging
import os
import pathlib
import socket
from collections.abc import Iterator

from tfps_plugin import errors

_logger = logging.getLogger("tfps_plugin.training")

NAME = ".lock"
# Another one has it. CIFS says the second.
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
# File systems without locks, such as buckets that are mounted.
_UNKNOWN = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
_MOST_BYTES = 200


@contextlib.contextmanager
def held(folder: pathlib.Path) -> Iterator[None]:
    """Keeps other programs, and other exporters of this one, from a folder.

    The kernel lets go of the lock when the process ends, however it does. It
    is seen on all machines if the file system has locks for all, as NFS has.

    Args:
        folder: The folder, which is created.

    Raises:
        ExportUnreadableError: If another one has the lock.
        OSError: If the folder or the lock cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    # It stays: who removes it may remove the one that another has just locked.
    with path.open("a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise _refusal(path) from None
            if error.errno not in _UNKNOWN:
                raise
            _logger.debug("%s cannot be locked: %s", path, error)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def _refusal(path: pathlib.Path) -> errors.ExportUnreadableError:
    holder = ""
    with contextlib.suppress(OSError), path.open("rb") as file:
        holder = file.read(_MOST_BYTES).decode(errors="replace")
    return errors.ExportUnreadableError(
        f"Another program is writing to the export folder {path.parent}. "
        "Expected one program that exports to a folder. Received: a lock "
        f"of {holder or 'a process that just began'}. Give each a folder of "
        "its own, or export again once that one has ended."
    )

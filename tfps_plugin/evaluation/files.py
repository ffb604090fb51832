"""Access to files, on this machine and on remote storage.

TensorFlow's file API reads remote storage, but it rounds the times of local
files to whole seconds, which is too coarse to detect that one was rewritten.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator

import tensorflow as tf

from tfps_plugin.evaluation.checkpoint import Stamp


def is_remote(path: str) -> bool:
    """Returns whether the path is a URL such as `gs://bucket/folder`."""
    return "://" in path


def list_files(folder: str) -> list[tuple[str, Stamp]]:
    """Returns path and stamp of each file; none for a missing folder."""
    return list(_remote(folder) if is_remote(folder) else _local(folder))


def stamp_of(path: str) -> Stamp | None:
    """Returns the stamp of a file; None if it does not exist."""
    try:
        if is_remote(path):
            return _remote_stamp(path)
        return _stamp(os.stat(path))
    except (FileNotFoundError, tf.errors.NotFoundError):
        return None


def copy(path: str, target: str) -> None:
    """Copies a file to this machine; reads it without taking a lock.

    Args:
        path: The file, local or remote.
        target: Path of the copy.

    Raises:
        OSError: If a local file cannot be read.
        tf.errors.OpError: If a remote file cannot be read.
    """
    if is_remote(path):
        tf.io.gfile.copy(path, target, overwrite=True)
    else:
        shutil.copyfile(path, target)


def _local(folder: str) -> Iterator[tuple[str, Stamp]]:
    # Files may disappear between listing and reading their status.
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file():
                    yield entry.path, _stamp(entry.stat())


def _remote(folder: str) -> Iterator[tuple[str, Stamp]]:
    with contextlib.suppress(tf.errors.NotFoundError):
        for name in tf.io.gfile.listdir(folder):
            path = f"{folder.rstrip('/')}/{name}"
            # On some remote storage, folders end in a slash.
            with contextlib.suppress(tf.errors.NotFoundError):
                if not name.endswith("/") and not tf.io.gfile.isdir(path):
                    yield path, _remote_stamp(path)


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


def _remote_stamp(path: str) -> Stamp:
    status = tf.io.gfile.stat(path)
    return Stamp(status.mtime_nsec, status.length)

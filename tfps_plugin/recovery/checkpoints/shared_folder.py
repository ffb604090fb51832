"""Checks whether other tasks see the files of the chief."""

import hashlib
import os
import posixpath
import uuid
from collections.abc import Iterable

import tensorflow as tf

_CHIEF = "/device:CPU:0"


def is_seen_by(folder: str, devices: Iterable[str]) -> bool:
    """Returns whether all tasks see a file that the chief writes to a folder.

    Args:
        folder: An existing folder that the chief may write to.
        devices: One device of each task.
    """
    path = posixpath.join(folder, f".tfps-{uuid.uuid4().hex}")
    content = os.urandom(16)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(content)
    try:
        return all(_content(path, device) == content for device in devices)
    finally:
        tf.io.gfile.remove(path)


def is_same_file(path: str, devices: Iterable[str]) -> bool:
    """Returns whether all tasks see the same content of a file as the chief.

    Args:
        path: A small file that the chief sees.
        devices: One device of each task.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        expected = hashlib.sha256(file.read()).digest()

    def sees(device: str) -> bool:
        content = _content(path, device)
        return (
            content is not None and hashlib.sha256(content).digest() == expected
        )

    return all(sees(device) for device in devices)


def _content(path: str, device: str) -> bytes | None:
    try:
        with tf.device(device):
            # A constant: see `part_files._save`.
            content = tf.io.read_file(tf.constant(path))
        with tf.device(_CHIEF):
            read: bytes = tf.identity(content).numpy()
    except (
        tf.errors.NotFoundError,
        tf.errors.PermissionDeniedError,
        tf.errors.FailedPreconditionError,
        tf.errors.InvalidArgumentError,
        tf.errors.UnimplementedError,
    ):
        return None
    return read

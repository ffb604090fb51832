"""Publishes checkpoints atomically: each exists whole or not at all.

A checkpoint consists of data files and an index, and exists once its index
does. It is written to a folder beside its place, with a name that begins with
a dot. Then the data files are moved to their place, and the index last. A
process that dies before that leaves nothing that looks like a checkpoint.
"""

import posixpath
from collections.abc import Sequence

import tensorflow as tf

_INDEX = ".index"
_WRITING = ".writing-"


def begin(prefix: str) -> str:
    """Creates the folder that a checkpoint is written to.

    Returns:
        The prefix to write to until `commit`.
    """
    folder, name = posixpath.split(prefix)
    writing = posixpath.join(folder, _WRITING + name)
    if tf.io.gfile.exists(writing):
        tf.io.gfile.rmtree(writing)
    tf.io.gfile.makedirs(writing)
    return posixpath.join(writing, name)


def commit(written: str, parts: Sequence[str], prefix: str) -> None:
    """Merges written files into a checkpoint and publishes it.

    Args:
        written: The prefix from `begin`.
        parts: Prefixes of the written files, which are merged.
        prefix: Prefix of the new checkpoint.

    Raises:
        tf.errors.OpError: If a file cannot be written or moved.
    """
    with tf.device("/device:CPU:0"):
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=list(parts),
            destination_prefix=written,
            delete_old_dirs=False,
        )
    for path in sorted(tf.io.gfile.glob(_escaped(written) + ".data-*")):
        tf.io.gfile.rename(
            path, prefix + path.removeprefix(written), overwrite=True
        )
    tf.io.gfile.rename(written + _INDEX, prefix + _INDEX, overwrite=True)
    discard(written)


def discard(written: str) -> None:
    """Removes the files of a checkpoint that is not committed.

    Args:
        written: The prefix from `begin`.
    """
    folder = posixpath.dirname(written)
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def discard_all(folder: str) -> None:
    """Removes the files that dead processes left uncommitted in a folder."""
    if not tf.io.gfile.isdir(folder):
        return
    for name in tf.io.gfile.listdir(folder):
        if name.startswith(_WRITING):
            tf.io.gfile.rmtree(posixpath.join(folder, name))


def remove(prefix: str) -> None:
    """Removes a checkpoint: its index first, without which it is none."""
    for pattern in (_INDEX, ".data-*"):
        for path in tf.io.gfile.glob(_escaped(prefix) + pattern):
            tf.io.gfile.remove(path)


def _escaped(prefix: str) -> str:
    """Escapes a prefix for use in a glob pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in prefix)

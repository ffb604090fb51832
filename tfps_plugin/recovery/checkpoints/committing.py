"""Makes a checkpoint appear, whole or not at all.

A checkpoint is some data files and an index, and exists once its index does.
It is written to a folder beside it, whose name begins with a dot; then its
data files are moved to their place, and its index last. Whoever dies before
that leaves nothing that could be taken for a checkpoint.
"""

import posixpath
from collections.abc import Sequence

import tensorflow as tf

_INDEX = ".index"
_WRITING = ".writing-"


def begin(prefix: str) -> str:
    """Makes the folder that a checkpoint is written to.

    Args:
        prefix: Of the checkpoint to be.

    Returns:
        The prefix to write to in its place.
    """
    folder, name = posixpath.split(prefix)
    writing = posixpath.join(folder, _WRITING + name)
    if tf.io.gfile.exists(writing):
        tf.io.gfile.rmtree(writing)
    tf.io.gfile.makedirs(writing)
    return posixpath.join(writing, name)


def commit(written: str, parts: Sequence[str], prefix: str) -> None:
    """Makes a checkpoint of what was written.

    Args:
        written: From `begin`.
        parts: Prefixes of what was written, to be put together.
        prefix: Of the checkpoint to be.
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
    """Removes what was written and is no checkpoint.

    Args:
        written: From `begin`.
    """
    folder = posixpath.dirname(written)
    if tf.io.gfile.exists(folder):
        tf.io.gfile.rmtree(folder)


def discard_all(folder: str) -> None:
    """Removes what processes that died have left of their writing."""
    if not tf.io.gfile.isdir(folder):
        return
    for name in tf.io.gfile.listdir(folder):
        if name.startswith(_WRITING):
            tf.io.gfile.rmtree(posixpath.join(folder, name))


def remove(prefix: str) -> None:
    """Removes a checkpoint, its index first: then it is none any more."""
    for pattern in (_INDEX, ".data-*"):
        for path in tf.io.gfile.glob(_escaped(prefix) + pattern):
            tf.io.gfile.remove(path)


def _escaped(prefix: str) -> str:
    """The prefix as part of a pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in prefix)

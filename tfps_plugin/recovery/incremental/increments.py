"""Increments on disk: their descriptions, and how they are restored."""

import posixpath
import zlib
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_checkpoints as compat
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import chain
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.recovery.incremental.chain import Link


def write_description(path: str, needs: Sequence[str]) -> str:
    """Writes the description of an increment.

    Args:
        path: First part of the name of the file.
        needs: Prefixes of the checkpoints before it, the full one first.

    Returns:
        The prefix of the written file.
    """
    folder = posixpath.dirname(needs[0])
    links = [
        Link(posixpath.relpath(need, folder or "."), _checksum(need))
        for need in needs
    ]
    entry = (chain.DESCRIPTION_KEY, "", tf.constant(chain.describe(links)))
    return part_files.save_here(path, 0, [entry])


def chain_of(prefix: str) -> list[str]:
    """Returns the checkpoints that restore one, in order; itself last.

    Args:
        prefix: Prefix of a full checkpoint or an increment.

    Raises:
        CheckpointUnreadableError: If one of those before it is gone, or was
            overwritten.
        tf.errors.OpError: If the checkpoint cannot be read.
    """
    reader = compat.open_reader(prefix)
    if not reader.has_tensor(chain.DESCRIPTION_KEY):
        return [prefix]
    folder = posixpath.dirname(chain.full_one_of(prefix))
    prefixes = []
    for link in chain.parse(reader.get_tensor(chain.DESCRIPTION_KEY)):
        needed = posixpath.join(folder, link.path)
        try:
            is_same = _checksum(needed) == link.checksum
        except tf.errors.NotFoundError:
            is_same = False
        if not is_same:
            raise errors.CheckpointUnreadableError(
                "An increment cannot be restored without the checkpoints "
                "before it. Expected each to be as it was when the increment "
                f"was written. Received: prefix={prefix!r}, and {needed!r} is "
                "gone or was overwritten. Restore the full checkpoint, or "
                "the folder from a backup."
            )
        prefixes.append(needed)
    return [*prefixes, prefix]


def restore(
    parts: Sequence[Part], prefixes: Sequence[str], *, by_ps: bool
) -> None:
    """Assigns the values of a checkpoint to parts.

    Args:
        parts: The parts to restore.
        prefixes: Its chain, from `chain_of`.
        by_ps: Whether each ps reads the files itself; if not, the chief does.

    Raises:
        tf.errors.OpError: If a file cannot be read.
    """
    keys = [keys_of(prefix) for prefix in prefixes]
    changes = [chain.changes_in(each) for each in keys]
    begins = [
        max((i for i, each in enumerate(keys) if part.key in each), default=0)
        for part in parts
    ]
    for number, prefix in enumerate(prefixes):
        whole = [p for p, i in zip(parts, begins, strict=True) if i == number]
        part_files.restore(whole, prefix, by_ps=by_ps)
        older = [p for p, i in zip(parts, begins, strict=True) if i < number]
        change_files.replay(older, prefix, changes[number], by_ps=by_ps)
    for part in parts:
        part.variable.begin_epoch()


def keys_of(prefix: str) -> dict[str, list[int]]:
    """Returns key and shape of the values in one checkpoint of a chain."""
    reader = compat.open_reader(prefix)
    shapes: dict[str, list[int]] = reader.get_variable_to_shape_map()
    return shapes


def _checksum(prefix: str) -> int:
    with tf.io.gfile.GFile(prefix + ".index", "rb") as file:
        return zlib.crc32(file.read())

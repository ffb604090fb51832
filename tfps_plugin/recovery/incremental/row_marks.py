"""Tells which rows of tables have changed.

Every parameter server keeps a fingerprint of 8 bytes of each row, and compares:
whoever changed a row, and how, it is noticed. Two rows that differ have the
same fingerprint once in 2**64 times.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.recovery.checkpoints.parts import Part

# Below that, a variable is written whole; in bytes.
SMALLEST_TABLE_BYTES = 1 << 20


def is_table(part: Part) -> bool:
    """Whether a part is of a variable with rows, and many of them."""
    if len(part.full_shape) < 2 or part.variable.dtype == tf.string:
        return False
    return part.row_bytes * part.full_shape[0] >= SMALLEST_TABLE_BYTES


@dataclasses.dataclass(frozen=True, eq=False)
class Mark:
    """The fingerprints of the rows of one part.

    Attributes:
        handle: The part's own: another one is another variable.
        fingerprints: int64, one a row; on the part's ps.
    """

    handle: Any
    fingerprints: tf.Tensor


# The mark of each part, by key and first row.
Marks = Mapping[tuple[str, int], Mark]


def take(part: Part, value: tf.Tensor) -> Mark:
    """Marks a part.

    Args:
        part: Of a table.
        value: Its rows, on its ps; the calling thread's device is that ps.
    """
    fingerprints = tf.bitcast(
        tf.raw_ops.Fingerprint(data=value, method="farmhash64"), tf.int64
    )
    return Mark(part.variable.own_handle, fingerprints)


def join(marks: Sequence[Mark]) -> Mark:
    """The mark of a part whose pieces were marked.

    Args:
        marks: Those of all its pieces, in order; at least one.
    """
    fingerprints = tf.concat([mark.fingerprints for mark in marks], 0)
    return Mark(marks[0].handle, fingerprints)


def changed(mark: Mark, since: Mark) -> tf.Tensor:
    """The numbers of the rows in which two marks of a part differ.

    Args:
        mark: Its mark now; the calling thread's device is the part's ps.
        since: Its mark then.

    Returns:
        int64, ascending; row 0 is the part's first.
    """
    differs = tf.not_equal(mark.fingerprints, since.fingerprints)
    return tf.squeeze(tf.where(differs), 1)


def known_tables(parts: Sequence[Part], marks: Marks) -> set[str]:
    """The keys of tables all of whose parts have a mark.

    Args:
        parts: All parts of today.
        marks: Those of some checkpoint.
    """
    known = {part.key for part in parts if is_table(part)}
    for part in parts:
        mark = marks.get((part.key, part.offset))
        if mark is None or mark.handle is not part.variable.own_handle:
            known.discard(part.key)
    return known

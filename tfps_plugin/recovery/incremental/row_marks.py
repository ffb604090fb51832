"""Row marks: fingerprints that show which rows of a table have changed.

Every parameter server keeps a fingerprint of 8 bytes for each row and compares
it, so that a change is noticed whoever made it. Two different rows have the
same fingerprint with a probability of 2**-64.
"""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.recovery.checkpoints.parts import Part

# Size in bytes below which a variable is always written whole.
SMALLEST_TABLE_BYTES = 1 << 20


def is_table(part: Part) -> bool:
    """Returns whether a part belongs to a variable that is written by rows."""
    if len(part.full_shape) < 2 or part.variable.dtype == tf.string:
        return False
    return part.row_bytes * part.full_shape[0] >= SMALLEST_TABLE_BYTES


@dataclasses.dataclass(frozen=True, eq=False)
class Mark:
    """Fingerprints of the rows of one part.

    Attributes:
        handle: Handle of the part; a different handle is another variable.
        fingerprints: int64 of shape `(num_rows,)`, on the part's ps.
    """

    handle: Any
    fingerprints: tf.Tensor


# The mark of each part, by its key and first row.
Marks = Mapping[tuple[str, int], Mark]


def take(part: Part, value: tf.Tensor) -> Mark:
    """Returns the mark of a part.

    Args:
        part: A part of a table.
        value: Its rows, on its ps, which must be the current device.
    """
    fingerprints = tf.bitcast(
        tf.raw_ops.Fingerprint(data=value, method="farmhash64"), tf.int64
    )
    return Mark(part.variable.own_handle, fingerprints)


def join(marks: Sequence[Mark]) -> Mark:
    """Joins the marks of the pieces of a part.

    Args:
        marks: The marks of all pieces, in order; at least one.
    """
    fingerprints = tf.concat([mark.fingerprints for mark in marks], 0)
    return Mark(marks[0].handle, fingerprints)


def changed(mark: Mark, since: Mark) -> tf.Tensor:
    """Returns the numbers of the rows in which two marks of a part differ.

    Args:
        mark: The current mark; the part's ps must be the current device.
        since: The earlier mark.

    Returns:
        Row numbers within the part, ascending, int64 of shape `(N,)`.
    """
    differs = tf.not_equal(mark.fingerprints, since.fingerprints)
    return tf.squeeze(tf.where(differs), 1)


def known_tables(parts: Sequence[Part], marks: Marks) -> set[str]:
    """Returns the keys of tables whose parts all have a mark.

    Args:
        parts: The current parts.
        marks: The marks of an earlier checkpoint.
    """
    known = {part.key for part in parts if is_table(part)}
    for part in parts:
        mark = marks.get((part.key, part.offset))
        if mark is None or mark.handle is not part.variable.own_handle:
            known.discard(part.key)
    return known

"""What a parameter server writes to a checkpoint, and reads from one.

In a checkpoint, a variable is one tensor, whole or in slices. TensorFlow puts
slices together, and cuts them, for whoever asks for others; so the shards of
today need not be those of the program that wrote it.
"""

import dataclasses
import math
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.saving import saved_form

# Rows travel and are written in slices of about this size, in bytes.
SLICE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A shard, or a variable that is whole, and its place in a checkpoint.

    Attributes:
        key: What the checkpoint calls the whole variable.
        variable: What has the rows, on its ps.
        offset: Row of the whole variable that its first one is.
        full_shape: Shape of the whole variable.
    """

    key: str
    variable: RemoteVariable
    offset: int
    full_shape: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole variable."""
        return tuple(self.variable.shape.as_list()) == self.full_shape

    @property
    def row_bytes(self) -> int:
        """Size of one row; at least 1."""
        elements = math.prod(self.full_shape[1:])
        return max(1, elements * int(self.variable.dtype.size))

    def slices(self, max_bytes: int | None) -> Iterator[tuple[str, range]]:
        """Cuts it for a checkpoint.

        Args:
            max_bytes: Size of a slice; None: all of it is one.

        Yields:
            The slice as checkpoints write it ("" for a whole variable), and
            its rows in `variable`.
        """
        if not self.full_shape:
            yield "", range(0)
            return
        for rows in saved_form.pieces(self.variable, max_bytes):
            if self.is_whole and len(rows) == self.full_shape[0]:
                yield "", rows
            else:
                yield self.spec(rows), rows

    def spec(self, rows: range) -> str:
        """Some of its rows, as checkpoints write a slice."""
        shape = [len(rows), *self.full_shape[1:]]
        spec: str = tf.Variable.SaveSliceInfo(
            "",
            list(self.full_shape),
            [self.offset + rows.start, *[0] * (len(shape) - 1)],
            shape,
        ).spec
        return spec


def parts_of(key: str, value: Any) -> list[Part]:
    """The parts of a variable.

    Args:
        key: What a checkpoint calls it.
        value: Any variable.

    Returns:
        Those that parameter servers hold; none if it is not theirs.
    """
    if isinstance(value, ShardedVariable):
        shape = tuple(value.shape.as_list())
        return [
            Part(key, shard, offset, shape)
            for shard, offset in zip(
                value.variables, value.layout.offsets, strict=False
            )
        ]
    if isinstance(value, RemoteVariable):
        return [Part(key, value, 0, tuple(value.shape.as_list()))]
    return []


def by_device(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """The parts that each parameter server holds."""
    grouped: dict[str, list[Part]] = {}
    for part in parts:
        grouped.setdefault(part.variable.device, []).append(part)
    return grouped

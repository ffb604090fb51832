"""Parts of variables: what each ps writes to a checkpoint and reads from one.

In a checkpoint, a variable is one tensor, whole or in slices. TensorFlow cuts
and joins slices to match a read, so the shards of a program need not be those
of the program that wrote the checkpoint.
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

# Size in bytes of the slices in which rows travel and are written.
SLICE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A shard or an unsharded variable, and its place in a checkpoint.

    Attributes:
        key: Key of the whole variable in the checkpoint.
        variable: The shard or variable, on its ps.
        offset: Row of the whole variable at which the part begins.
        full_shape: Shape of the whole variable.
    """

    key: str
    variable: RemoteVariable
    offset: int
    full_shape: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Returns whether the part is the whole variable."""
        return tuple(self.variable.shape.as_list()) == self.full_shape

    @property
    def row_bytes(self) -> int:
        """Size of one row in bytes; at least 1."""
        elements = math.prod(self.full_shape[1:])
        return max(1, elements * int(self.variable.dtype.size))

    def slices(self, max_bytes: int | None) -> Iterator[tuple[str, range]]:
        """Cuts the part into slices for a checkpoint.

        Args:
            max_bytes: Size of a slice; None for one slice.

        Yields:
            The slice specification ("" for a whole variable), and its rows in
            `variable`.
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
        """Returns the slice specification of some rows of the part."""
        shape = [len(rows), *self.full_shape[1:]]
        spec: str = tf.Variable.SaveSliceInfo(
            "",
            list(self.full_shape),
            [self.offset + rows.start, *[0] * (len(shape) - 1)],
            shape,
        ).spec
        return spec


def parts_of(key: str, value: Any) -> list[Part]:
    """Returns the parts of a variable.

    Args:
        key: Key of the variable in a checkpoint.
        value: Any variable.

    Returns:
        The parts on parameter servers; none if the variable is elsewhere.
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
    """Groups parts by the device of their parameter server."""
    grouped: dict[str, list[Part]] = {}
    for part in parts:
        grouped.setdefault(part.variable.device, []).append(part)
    return grouped

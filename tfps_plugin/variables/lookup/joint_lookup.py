"""Lookups of rows of several tables in one exchange with each ps.

A lookup costs each ps a message of ids and one of rows, however few they are.
Tables that are needed together share these messages: all ids for one ps travel
in one tensor, and all its rows come back in one.

Shape legend: P parts of tables on one ps, N ids asked for, U distinct ids of
one table among them, D numbers in a row of that table.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.graph import tensorflow_vectorizing
from tfps_plugin.variables.compression import quantization
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import present_rows
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.row_lookup import Arrangement
from tfps_plugin.variables.lookup.shard_order import ShardOrder
from tfps_plugin.variables.lookup.table import Table


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """The request of one lookup to one shard of one table.

    Attributes:
        shard: The variable on the ps.
        num_rows: Number of its rows.
        dtype: Dtype of the rows on the way.
        ids_U: Distinct row numbers, counted from its own first row.
    """

    shard: Any
    num_rows: int
    dtype: tf.DType
    ids_U: tf.Tensor

    @property
    def row_shape(self) -> list[int]:
        """Shape of one row as it travels."""
        shape: list[int] = self.shard.shape[1:].as_list()
        if self.is_coded:
            shape[-1] = quantization.num_words(shape[-1])
        return shape

    @property
    def is_coded(self) -> bool:
        """True if rows travel quantized; see `quantization`."""
        return self.dtype == tf.int8 != self.shard.dtype


def look_up_together(
    tables: Sequence[Table],
    indices: Sequence[Any],
    *,
    from_end: bool = False,
    are_inside: bool = False,
    in_shard_order: Sequence[bool] | None = None,
    arranged: Sequence[Arrangement | None] | None = None,
) -> list[tf.Tensor]:
    """Looks up rows of several tables.

    The rows and gradients are those of a `row_lookup.look_up` for each table.
    Tables that are whole on one ps are looked up one by one. Gradient tapes
    know such a table by its handle, and TensorFlow places the operation that
    connects rows and handle with the handle. Rows that are split out of a
    common message on the worker would travel back to the ps for it.

    Args:
        tables: The tables, of any widths, dtypes and shards.
        indices: For each table row numbers, an integer tensor of any shape.
        from_end: Whether a negative id counts from the end of its table.
        are_inside: Whether each table is known to have all of its ids.
        in_shard_order: For each table as in `row_lookup.look_up`; by default
            False.
        arranged: For each table as in `row_lookup.look_up`; by default None.

    Returns:
        For each table the rows, of shape `indices.shape + table.shape[1:]`.
    """
    rows = {}
    joint = []
    in_shard_order = in_shard_order or [False] * len(tables)
    arranged = arranged or [None] * len(tables)
    # In a vectorized function, the ids are only known at the conversion.
    is_vectorized = tensorflow_vectorizing.element() is not None
    for number, (table, ids, in_order) in enumerate(
        zip(tables, indices, in_shard_order, strict=True)
    ):
        if table.is_whole or is_vectorized:
            rows[number] = row_lookup.look_up(
                table,
                ids,
                from_end=from_end,
                are_inside=are_inside,
                arranged=arranged[number],
            )
        else:
            distinct = row_lookup.distinct_ids(
                table,
                ids,
                from_end=from_end,
                are_inside=are_inside,
                in_shard_order=in_order,
            )
            joint.append((number, table, *distinct))
    dtypes = [
        wire.dtype_of_reads(table) or table.dtype for _, table, _, _ in joint
    ]
    with compat.stop_recording():
        gathered = _gather(
            [table for _, table, _, _ in joint],
            [order for _, _, order, _ in joint],
            dtypes,
        )
    for (number, table, order, positions), rows_UD in zip(
        joint, gathered, strict=True
    ):
        known_UD = row_lookup.recorded(table, order, rows_UD)
        arrange = arranged[number]
        if arrange is not None:
            positions = arrange(positions)
        rows[number] = tf.gather(known_UD, positions)
    return [rows[number] for number in range(len(tables))]


def _gather(
    tables: Sequence[Table],
    orders: Sequence[ShardOrder],
    dtypes: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """Gathers distinct rows of each table, in the order of its ids.

    Args:
        tables: The tables.
        orders: Distinct row numbers of each.
        dtypes: Dtype of each table's rows on the way.

    Returns:
        For each table its rows, shape `(U, D)`.
    """
    parts_of_tables = []
    # Tables of one cluster live on the same few devices.
    parts_on: dict[str, list[_Part]] = {}
    for table, order, dtype in zip(tables, orders, dtypes, strict=True):
        parts = [
            _Part(
                shard,
                len(table.layout.rows(number)),
                dtype,
                part_U,
            )
            for number, (shard, part_U) in enumerate(
                zip(table.shards, order.local_ids, strict=True)
            )
        ]
        for part in parts:
            parts_on.setdefault(part.shard.device, []).append(part)
        parts_of_tables.append(parts)
    rows: dict[_Part, tf.Tensor] = {}
    for device, parts in parts_on.items():
        rows.update(_exchange(device, parts))
    return [
        wire.widened(
            order.join([rows[part] for part in parts]),
            table.dtype,
            table.shape[-1],
        )
        for table, parts, order in zip(
            tables, parts_of_tables, orders, strict=True
        )
    ]


def _exchange(device: str, parts: Sequence[_Part]) -> dict[_Part, tf.Tensor]:
    """Fetches the rows of all parts on one ps.

    Returns:
        The rows of each part, shape `(U, D)`.
    """
    message, counts_P = _pack(parts)
    by_dtype: dict[tf.DType, list[int]] = {}
    for number, part in enumerate(parts):
        dtype = tf.int32 if part.is_coded else part.dtype
        by_dtype.setdefault(dtype, []).append(number)
    with tf.device(device):
        ids = _unpack(message, len(parts))
        # One tensor for each dtype; there is nearly always one.
        answers = {
            dtype: tf.concat(
                [_flat_rows(parts[number], ids[number]) for number in numbers],
                0,
            )
            for dtype, numbers in by_dtype.items()
        }
    rows: dict[_Part, tf.Tensor] = {}
    for dtype, numbers in by_dtype.items():
        asked = [parts[number] for number in numbers]
        counts = [counts_P[number] for number in numbers]
        rows.update(
            zip(asked, _cut(answers[dtype], asked, counts), strict=True)
        )
    return rows


def _pack(parts: Sequence[_Part]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Packs a message to a ps: the numbers of ids of each part, then all ids.

    Returns:
        The message, shape `(P + sum of U,)`; and the numbers of ids, each a
        scalar, for the worker itself.
    """
    # Few shards have more rows, and ids are half of the traffic for tables of
    # one or two numbers a row.
    small = all(part.num_rows <= tf.int32.max for part in parts)
    dtype = tf.int32 if small else tf.int64
    with tf.device(graph_checks.CPU):
        counts_P = [tf.size(part.ids_U, out_type=dtype) for part in parts]
        ids = [tf.cast(part.ids_U, dtype) for part in parts]
        return tf.concat([tf.stack(counts_P), *ids], 0), counts_P


def _unpack(message: tf.Tensor, num_parts: int) -> list[tf.Tensor]:
    """Splits a message into the ids of each part, on the ps."""
    counts_P = message[:num_parts]
    return tf.split(message[num_parts:], counts_P, num=num_parts)


def _flat_rows(part: _Part, ids_U: tf.Tensor) -> tf.Tensor:
    """Gathers the rows of one part on the ps, flattened."""
    rows_UD = present_rows.gather(part.shard, ids_U)
    if part.dtype != part.shard.dtype:
        rows_UD = wire.narrowed(rows_UD, part.dtype)
    return tf.reshape(rows_UD, [-1])


def _cut(
    answer: tf.Tensor, parts: Sequence[_Part], counts: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Splits the answer of a ps into the rows of each part.

    Args:
        answer: All numbers of all rows, a vector.
        parts: The requests.
        counts: Number of rows of each part, scalars.

    Returns:
        The rows of each part, shape `(U, D)`.
    """
    with tf.device(graph_checks.CPU):
        shapes = [
            tf.stack([count, *part.row_shape])
            for part, count in zip(parts, counts, strict=True)
        ]
        sizes = tf.stack(
            [
                tf.cast(count, tf.int64) * math.prod(part.row_shape)
                for part, count in zip(parts, counts, strict=True)
            ]
        )
    pieces = (
        [answer] if len(parts) == 1 else tf.split(answer, sizes, num=len(parts))
    )
    return [
        tf.reshape(piece, shape)
        for piece, shape in zip(pieces, shapes, strict=True)
    ]

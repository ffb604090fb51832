"""Looks up the ids of many features in stacks of tables, all at once.

Shape legend: F features, N ids of all features, S of them that are negative or
too large, D numbers in a row.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.training.embedding import matrix_columns
from tfps_plugin.training.embedding.id_counts import CountsOfEach
from tfps_plugin.training.embedding.id_counts import EqualCounts
from tfps_plugin.training.embedding.id_counts import IdCounts
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.table import looked_up_table


@dataclasses.dataclass(frozen=True)
class Span:
    """Destination of the ids of one feature.

    Attributes:
        feature: Name of the feature.
        table: Name of its table.
        rows: The rows of the table in its stack.
    """

    feature: str
    table: str
    rows: range


@dataclasses.dataclass(frozen=True)
class Request:
    """A lookup in one stack.

    Attributes:
        stack: The variable, shape `(rows, D)`.
        spans: The features.
        ids: For each feature a vector of its ids, int32 or int64. As in
            `keras.layers.Embedding`, a negative id counts from the end of the
            table.
        cache: Rows of the stack that the worker has already.
    """

    stack: Any
    spans: Sequence[Span]
    ids: Sequence[tf.Tensor]
    cache: row_lookup.Cache | None = None


def look_up(requests: Sequence[Request]) -> list[list[tf.Tensor]]:
    """Looks up the ids of all features in one exchange for all stacks.

    Returns:
        For each stack, and for each feature in it, a row of D numbers for
        each id.
    """
    asked = [_asked(request) for request in requests]
    return [
        each.counts.cut(rows_ND, each.as_given)
        for each, rows_ND in zip(asked, _gather(asked), strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class _Asked:
    """The rows of one stack that features need.

    Attributes:
        stack: The variable.
        table: Result of `looked_up_table`: None, or the table of the stack
            and a function to apply to its rows.
        order: Numbers of the features, in the order of the request.
        in_shard_order: Whether that is the order of the shards.
        rows_N: Row numbers.
        counts: The number of rows of each feature, in that order.
        cache: That of the request.
    """

    stack: Any
    table: Any
    order: Sequence[int]
    in_shard_order: bool
    rows_N: tf.Tensor
    counts: IdCounts
    cache: row_lookup.Cache | None

    @property
    def as_given(self) -> list[int]:
        """The permutation from the order of the request to the given one."""
        return [int(number) for number in np.argsort(self.order)]

    def arranged(self, values_N: tf.Tensor) -> tf.Tensor:
        """Reorders a value for each row to the given order of the features."""
        with tf.device(graph_checks.CPU):
            return self.counts.arranged(values_N, self.as_given)


def _asked(request: Request) -> _Asked:
    order, in_shard_order = list(range(len(request.spans))), False
    found = looked_up_table(request.stack)
    if found is not None:
        shards = [
            [
                number
                for number, _ in found[0].layout.overlaps(rows[0], rows[-1] + 1)
            ]
            for rows in (span.rows for span in request.spans)
        ]
        # Then the features of a shard follow one another, and their rows need
        # no sorting.
        in_shard_order = all(len(numbers) == 1 for numbers in shards)
        if in_shard_order:
            order.sort(key=lambda number: shards[number][0])
    with tf.device(graph_checks.CPU):
        rows_N, counts = _stack_rows(
            int(request.stack.shape[0]),
            [request.spans[number] for number in order],
            [request.ids[number] for number in order],
        )
    return _Asked(
        request.stack,
        found,
        order,
        in_shard_order,
        rows_N,
        counts,
        request.cache,
    )


def _gather(asked: Sequence[_Asked]) -> list[Any]:
    """Gathers the rows of each stack."""
    gathered = []
    for each in asked:
        if each.table is None:
            gathered.append(tf.gather(each.stack, each.arranged(each.rows_N)))
            continue
        table, applied = each.table
        rows_ND = row_lookup.look_up(
            table,
            each.rows_N,
            are_inside=True,
            in_shard_order=each.in_shard_order,
            arranged=each.arranged,
            cache=each.cache,
        )
        gathered.append(applied(rows_ND))
    return gathered


def _stack_rows(
    num_rows: int, spans: Sequence[Span], ids: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, IdCounts]:
    """Returns row numbers of the stack for all ids, and counts by feature.

    An id outside its table must not reach the lookup: it may be a row of the
    stack that belongs to another table.
    """
    # Sums of ids and offsets must fit; the ps get the smaller dtype.
    dtype = tf.int32 if num_rows <= tf.int32.max else tf.int64
    wide = any(each.dtype == tf.int64 for each in ids) or dtype == tf.int64
    asked = tf.int64 if wide else tf.int32
    ids_N, counts = _together(ids, asked)
    sizes_N = counts.of_each_id([len(span.rows) for span in spans], asked)
    offsets_N = counts.of_each_id([span.rows.start for span in spans], dtype)
    # Ids that are negative or too large. Usually there are none, and their
    # handling costs next to nothing.
    others_S1 = _not_among(ids_N, sizes_N)
    sizes_S = _of_some(sizes_N, others_S1)
    # Negative ids count from the end of their table.
    from_front_S = tf.gather_nd(ids_N, others_S1) + sizes_S
    unknown_K1 = tf.gather_nd(others_S1, _not_among(from_front_S, sizes_S))
    unknown_features = counts.features_of(unknown_K1[:, 0])
    ids_N = graph_checks.gated(
        ids_N,
        tf.equal(tf.size(unknown_K1), 0),
        [
            "Ids outside of their tables were looked up. Features:",
            tf.gather([span.feature for span in spans], unknown_features),
            "tables:",
            tf.gather([span.table for span in spans], unknown_features),
            "rows of the tables:",
            _of_some(sizes_N, unknown_K1),
            "Received: ids =",
            tf.gather_nd(ids_N, unknown_K1),
            "Expected: 0 <= id < rows, or -rows <= id < 0 from the end. Make "
            "the table larger (vocabulary_size of its TableConfig), or map "
            "unknown ids to a row of their own before the lookup.",
        ],
    )
    ids_N = tf.tensor_scatter_nd_update(ids_N, others_S1, from_front_S)
    return tf.cast(ids_N, dtype) + offsets_N, counts


def _together(
    ids: Sequence[tf.Tensor], dtype: tf.DType
) -> tuple[tf.Tensor, IdCounts]:
    """Joins all ids in one vector; returns the counts by feature as well."""
    columns = matrix_columns.columns_of_one_matrix(ids)
    if columns is not None:
        ids_FB = tf.cast(columns.side_by_side(), dtype)
        return tf.reshape(ids_FB, [-1]), EqualCounts(ids_FB)
    ids = [tf.cast(each, dtype) for each in ids]
    return tf.concat(ids, 0), CountsOfEach(ids)


def _not_among(ids: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of ids outside their tables, shape `(S, 1)`."""
    # As an unsigned number, a negative id is larger than all rows.
    unsigned = tf.uint64 if ids.dtype == tf.int64 else tf.uint32
    return tf.where(tf.bitcast(ids, unsigned) >= tf.bitcast(sizes, unsigned))


def _of_some(of_each: tf.Tensor, which_S1: tf.Tensor) -> tf.Tensor:
    """Selects some values of `IdCounts.of_each_id`: `(S,)`, or a scalar."""
    if of_each.shape.rank == 0:
        return of_each
    return tf.gather_nd(of_each, which_S1)

"""Looks up the ids of many features in stacks of tables, all at once.

Shape legend: F features, N ids of all features, S of them that are no rows as
they are, D numbers in a row.
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
from tfps_plugin.variables.lookup import joint_lookup
from tfps_plugin.variables.lookup import row_lookup


@dataclasses.dataclass(frozen=True)
class Span:
    """Where the ids of one feature go.

    Attributes:
        feature: Name of the feature.
        table: Name of its table.
        rows: The rows of the stack that the table has.
    """

    feature: str
    table: str
    rows: range


@dataclasses.dataclass(frozen=True)
class Request:
    """What is looked up in one stack.

    Attributes:
        stack: The variable, shape `(rows, D)`.
        spans: The features.
        ids: For each feature its ids, in one row, int32 or int64. As in
            `keras.layers.Embedding`, a negative id counts from the end of the
            table.
    """

    stack: Any
    spans: Sequence[Span]
    ids: Sequence[tf.Tensor]


def look_up(requests: Sequence[Request]) -> list[list[tf.Tensor]]:
    """Looks up the ids of all features, with one exchange for all stacks.

    Args:
        requests: What is looked up in each stack.

    Returns:
        For each stack, and for each feature in it, one row of D numbers for
        each of its ids.
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
        table: What `table_behind` says of it: None, or the table that it is and
            what has to be done with its rows.
        order: The numbers of the features, in which their rows are asked for.
        in_shard_order: Whether that is the order of the shards.
        rows_N: Row numbers.
        counts: How many of them each feature has, in that order.
    """

    stack: Any
    table: Any
    order: Sequence[int]
    in_shard_order: bool
    rows_N: tf.Tensor
    counts: IdCounts

    @property
    def as_given(self) -> list[int]:
        """Which of the features asked for was given first, and so on."""
        return [int(number) for number in np.argsort(self.order)]

    def arranged(self, values_N: tf.Tensor) -> tf.Tensor:
        """Something for each of the rows, feature by feature as given."""
        with tf.device(graph_checks.CPU):
            return self.counts.arranged(values_N, self.as_given)


def _asked(request: Request) -> _Asked:
    order, in_shard_order = list(range(len(request.spans))), False
    found = row_lookup.table_behind(request.stack)
    if found is not None:
        shards = [
            [
                number
                for number, _ in found[0].layout.overlaps(rows[0], rows[-1] + 1)
            ]
            for rows in (span.rows for span in request.spans)
        ]
        # Then the features of one shard follow one another, and what they ask
        # for needs no sorting.
        in_shard_order = all(len(numbers) == 1 for numbers in shards)
        if in_shard_order:
            order.sort(key=lambda number: shards[number][0])
    with tf.device(graph_checks.CPU):
        rows_N, counts = _stack_rows(
            int(request.stack.shape[0]),
            [request.spans[number] for number in order],
            [request.ids[number] for number in order],
        )
    return _Asked(request.stack, found, order, in_shard_order, rows_N, counts)


def _gather(asked: Sequence[_Asked]) -> list[Any]:
    """Rows of each stack; those on parameter servers are asked for together."""
    ours = [each for each in asked if each.table is not None]
    if len(ours) == 1:
        # Needs no message that says how many ids each stack has.
        (one,) = ours
        together = [
            row_lookup.look_up(
                one.table[0],
                one.rows_N,
                are_inside=True,
                in_shard_order=one.in_shard_order,
                arranged=one.arranged,
            )
        ]
    else:
        together = joint_lookup.look_up_together(
            [each.table[0] for each in ours],
            [each.rows_N for each in ours],
            are_inside=True,
            in_shard_order=[each.in_shard_order for each in ours],
            arranged=[each.arranged for each in ours],
        )
    of_ours = iter(zip(ours, together, strict=True))
    gathered = []
    for each in asked:
        if each.table is None:
            gathered.append(tf.gather(each.stack, each.arranged(each.rows_N)))
        else:
            one, rows_ND = next(of_ours)
            gathered.append(one.table[1](rows_ND))
    return gathered


def _stack_rows(
    num_rows: int, spans: Sequence[Span], ids: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, IdCounts]:
    """Row numbers of the stack for all ids, and how many each feature has.

    An id that its own table does not have must not get as far as the lookup:
    it may well be a row of the stack, of another table.
    """
    # Sums of ids and offsets must fit; the ps get the smaller ones.
    dtype = tf.int32 if num_rows <= tf.int32.max else tf.int64
    wide = any(each.dtype == tf.int64 for each in ids) or dtype == tf.int64
    asked = tf.int64 if wide else tf.int32
    ids_N, counts = _together(ids, asked)
    sizes_N = counts.of_each_id([len(span.rows) for span in spans], asked)
    offsets_N = counts.of_each_id([span.rows.start for span in spans], dtype)
    # Those that are no rows as they are. Mostly there are none, and what is
    # done for them costs next to nothing.
    others_S1 = _not_among(ids_N, sizes_N)
    sizes_S = _of_some(sizes_N, others_S1)
    # Negative ones count from the end of their table.
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
    """All ids in one row; and how many each feature has."""
    columns = matrix_columns.columns_of_one_matrix(ids)
    if columns is not None:
        ids_FB = tf.cast(columns.side_by_side(), dtype)
        return tf.reshape(ids_FB, [-1]), EqualCounts(ids_FB)
    ids = [tf.cast(each, dtype) for each in ids]
    return tf.concat(ids, 0), CountsOfEach(ids)


def _not_among(ids: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Numbers of the ids that are no row of their tables, shape `(S, 1)`."""
    # Without a sign, a negative id is larger than all rows.
    unsigned = tf.uint64 if ids.dtype == tf.int64 else tf.uint32
    return tf.where(tf.bitcast(ids, unsigned) >= tf.bitcast(sizes, unsigned))


def _of_some(of_each: tf.Tensor, which_S1: tf.Tensor) -> tf.Tensor:
    """What `IdCounts.of_each_id` returned, of some ids: `(S,)`, or a scalar."""
    if of_each.shape.rank == 0:
        return of_each
    return tf.gather_nd(of_each, which_S1)

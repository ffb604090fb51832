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
from tfps_plugin.variables import graph_checks
from tfps_plugin.variables import joint_lookup
from tfps_plugin.variables import row_lookup


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
    looked_up = []
    for each, rows_ND in zip(asked, _gather(asked), strict=True):
        parts = [rows_ND]
        if len(each.order) > 1:
            parts = tf.split(
                rows_ND, each.arranged_counts_F, num=len(each.order)
            )
        looked_up.append(parts)
    return looked_up


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
        counts_F: How many of them each feature has, in that order.
    """

    stack: Any
    table: Any
    order: Sequence[int]
    in_shard_order: bool
    rows_N: tf.Tensor
    counts_F: tf.Tensor

    @property
    def is_as_given(self) -> bool:
        """Whether the first feature comes first, and so on."""
        return list(self.order) == sorted(self.order)

    @property
    def arranged_counts_F(self) -> tf.Tensor:
        """How many rows each feature has, as they were given."""
        if self.is_as_given:
            return self.counts_F
        with tf.device(graph_checks.CPU):
            return tf.gather(self.counts_F, np.argsort(self.order))

    def arranged(self, values_N: tf.Tensor) -> tf.Tensor:
        """Something for each of the rows, feature by feature as given."""
        if self.is_as_given:
            return values_N
        with tf.device(graph_checks.CPU):
            parts = tf.split(values_N, self.counts_F, num=len(self.order))
            return tf.concat([parts[n] for n in np.argsort(self.order)], 0)


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
        rows_N, counts_F = _stack_rows(
            int(request.stack.shape[0]),
            [request.spans[number] for number in order],
            [request.ids[number] for number in order],
        )
    return _Asked(request.stack, found, order, in_shard_order, rows_N, counts_F)


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
) -> tuple[tf.Tensor, tf.Tensor]:
    """Row numbers of the stack for all ids, and how many each feature has.

    An id that its own table does not have must not get as far as the lookup:
    it may well be a row of the stack, of another table.
    """
    # Sums of ids and offsets must fit; the ps get the smaller ones.
    dtype = tf.int32 if num_rows <= tf.int32.max else tf.int64
    wide = any(each.dtype == tf.int64 for each in ids) or dtype == tf.int64
    asked = tf.int64 if wide else tf.int32
    ids_N, counts = _together(ids, asked)
    counts_F = tf.concat(counts, 0)
    sizes_N = _of_each_id([len(span.rows) for span in spans], asked, counts)
    offsets_N = _of_each_id([span.rows.start for span in spans], dtype, counts)
    # Those that are no rows as they are. Without a sign, a negative id is
    # larger than all rows.
    unsigned = tf.uint64 if asked == tf.int64 else tf.uint32
    others_S = tf.where(
        tf.bitcast(ids_N, unsigned) >= tf.bitcast(sizes_N, unsigned)
    )[:, 0]
    # Mostly there are none, and what is done for them costs next to nothing.
    ids_S = tf.gather(ids_N, others_S)
    sizes_S = _of_some(sizes_N, others_S)
    unknown = tf.where((ids_S >= 0) | (ids_S < -sizes_S))[:, 0]
    places = tf.cast(tf.gather(others_S, unknown), counts_F.dtype)
    unknown_features = tf.raw_ops.UpperBound(
        sorted_inputs=tf.expand_dims(tf.cumsum(counts_F), 0),
        values=tf.expand_dims(places, 0),
    )
    unknown_features = tf.squeeze(unknown_features, 0)
    ids_N = graph_checks.gated(
        ids_N,
        tf.equal(tf.size(unknown), 0),
        [
            "Ids outside of their tables were looked up. Features:",
            tf.gather([span.feature for span in spans], unknown_features),
            "tables:",
            tf.gather([span.table for span in spans], unknown_features),
            "rows of the tables:",
            tf.gather(sizes_S, unknown),
            "Received: ids =",
            tf.gather(ids_S, unknown),
            "Expected: 0 <= id < rows, or -rows <= id < 0 from the end. Make "
            "the table larger (vocabulary_size of its TableConfig), or map "
            "unknown ids to a row of their own before the lookup.",
        ],
    )
    from_front_N = tf.tensor_scatter_nd_add(ids_N, others_S[:, None], sizes_S)
    return tf.cast(from_front_N, dtype) + offsets_N, counts_F


def _together(
    ids: Sequence[tf.Tensor], dtype: tf.DType
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """All ids in one row; and how many each feature has, shape `(1,)`."""
    columns = matrix_columns.columns_of_one_matrix(ids)
    if columns is not None:
        ids_FB = tf.cast(columns.side_by_side(), dtype)
        return tf.reshape(ids_FB, [-1]), [tf.shape(ids_FB)[1:]] * len(ids)
    ids = [tf.cast(each, dtype) for each in ids]
    return tf.concat(ids, 0), tf.raw_ops.ShapeN(input=ids)


def _of_each_id(
    of_features: Sequence[int], dtype: tf.DType, counts: Sequence[tf.Tensor]
) -> tf.Tensor:
    """For each id what is known of its feature, shape `(N,)`.

    To fill it in for each feature takes a quarter of the time that it takes to
    look it up for each id, of 26 features of 512 ids.

    Args:
        of_features: What is known of each feature.
        dtype: Of the result.
        counts: How many ids each feature has, shape `(1,)`.

    Returns:
        A scalar in its place if it is the same of all features.
    """
    if len(set(of_features)) == 1:
        return tf.constant(of_features[0], dtype)
    if all(count is counts[0] for count in counts):
        known_F1 = tf.constant([[known] for known in of_features], dtype)
        all_sizes = tf.concat([[len(of_features)], counts[0]], 0)
        return tf.reshape(tf.broadcast_to(known_F1, all_sizes), [-1])
    return tf.concat(
        [
            tf.fill(count, tf.constant(known, dtype))
            for known, count in zip(of_features, counts, strict=True)
        ],
        0,
    )


def _of_some(of_each: tf.Tensor, which_S: tf.Tensor) -> tf.Tensor:
    """Of what `_of_each_id` returned, that of some ids, shape `(S,)`."""
    if of_each.shape.rank == 0:
        return tf.fill(tf.shape(which_S), of_each)
    return tf.gather(of_each, which_S)

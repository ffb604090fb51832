"""Looks up the ids of many features in stacks of tables, all at once.

Shape legend: F features, N ids of all features, D numbers in a row.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

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
    # Features of one shard follow one another; then their rows need no sorting.
    orders = [
        sorted(range(len(each.spans)), key=lambda n: each.spans[n].rows.start)
        for each in requests
    ]
    ordered = [
        dataclasses.replace(
            each,
            spans=[each.spans[number] for number in order],
            ids=[each.ids[number] for number in order],
        )
        for each, order in zip(requests, orders, strict=True)
    ]
    with tf.device(graph_checks.CPU):
        stacked = [
            _stack_rows(int(each.stack.shape[0]), each.spans, each.ids)
            for each in ordered
        ]
    gathered = _gather(ordered, [rows_N for rows_N, _ in stacked])
    looked_up = []
    for order, rows_ND, (_, counts_F) in zip(
        orders, gathered, stacked, strict=True
    ):
        parts = [rows_ND]
        if len(order) > 1:
            parts = tf.split(rows_ND, counts_F, num=len(order))
        by_number = dict(zip(order, parts, strict=True))
        looked_up.append([by_number[number] for number in range(len(order))])
    return looked_up


def _is_each_in_one_shard(table: row_lookup.Table, request: Request) -> bool:
    """Whether each feature's rows are in one shard; `look_up` sorts them."""
    return all(
        len(list(table.layout.overlaps(span.rows.start, span.rows.stop))) == 1
        for span in request.spans
    )


def _gather(
    requests: Sequence[Request], rows: Sequence[tf.Tensor]
) -> list[Any]:
    """Rows of each stack; those on parameter servers are asked for together."""
    stacks = [each.stack for each in requests]
    found = [row_lookup.table_behind(stack) for stack in stacks]
    ours = [
        (number, *each) for number, each in enumerate(found) if each is not None
    ]
    in_shard_order = [
        _is_each_in_one_shard(table, requests[number])
        for number, table, _ in ours
    ]
    if len(ours) == 1:
        # Needs no message that says how many ids each stack has.
        ((number, table, _),) = ours
        together = [
            row_lookup.look_up(
                table, rows[number], in_shard_order=in_shard_order[0]
            )
        ]
    else:
        together = joint_lookup.look_up_together(
            [table for _, table, _ in ours],
            [rows[number] for number, _, _ in ours],
            in_shard_order=in_shard_order,
        )
    gathered = {
        number: of_rows(rows_ND)
        for (number, _, of_rows), rows_ND in zip(ours, together, strict=True)
    }
    return [
        gathered[number] if number in gathered else tf.gather(stack, rows_N)
        for number, (stack, rows_N) in enumerate(zip(stacks, rows, strict=True))
    ]


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
    ids_N = tf.concat([tf.cast(each, asked) for each in ids], 0)
    counts_F = tf.stack([tf.size(each) for each in ids])
    # Which feature each id belongs to: the first whose ids end after it. All
    # features are checked by the same few operations, however many they are.
    features_N = tf.searchsorted(
        tf.cumsum(counts_F), tf.range(tf.size(ids_N)), side="right"
    )
    sizes_N = tf.gather(
        tf.constant([len(span.rows) for span in spans], asked), features_N
    )
    offsets_N = tf.gather(
        tf.constant([span.rows.start for span in spans], dtype), features_N
    )
    unknown_N = (ids_N < -sizes_N) | (ids_N >= sizes_N)
    # Where all is well, these are empty and cost next to nothing.
    found = tf.where(unknown_N)[:, 0]
    found_features = tf.gather(features_N, found)
    ids_N = graph_checks.gated(
        ids_N,
        tf.equal(tf.size(found), 0),
        [
            "Ids outside of their tables were looked up. Features:",
            tf.gather([span.feature for span in spans], found_features),
            "tables:",
            tf.gather([span.table for span in spans], found_features),
            "rows of the tables:",
            tf.gather(sizes_N, found),
            "Received: ids =",
            tf.gather(ids_N, found),
            "Expected: 0 <= id < rows, or -rows <= id < 0 from the end. Make "
            "the table larger (vocabulary_size of its TableConfig), or map "
            "unknown ids to a row of their own before the lookup.",
        ],
    )
    ids_N = tf.where(ids_N < 0, ids_N + sizes_N, ids_N)
    return tf.cast(ids_N, dtype) + offsets_N, counts_F

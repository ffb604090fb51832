"""Sums of gradients over several steps, kept on the parameter servers."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.strategy import updates
from tfps_plugin.training.optimizers import branches
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.updates import views


def add_or_take(
    accumulators: Sequence[Any],
    gradients: Sequence[Any],
    is_last: tf.Tensor,
    use: Callable[[list[Any]], None],
) -> None:
    """Adds the gradients of a step to their sums, and uses full sums.

    Args:
        accumulators: As for `add`, one for every gradient.
        gradients: Dense, or `DistinctRows`.
        is_last: Whether the sums are full with this step; a boolean scalar.
        use: Called with the sums, as returned by `take`.
    """
    pairs = list(zip(accumulators, gradients, strict=True))

    def add_all() -> None:
        for pair in pairs:
            add(*pair)

    branches.run_if(
        is_last, lambda: use([take(*pair) for pair in pairs]), add_all
    )


def add(accumulator: Any, gradient: Any) -> None:
    """Adds a gradient to its sum, where the sum lives.

    Args:
        accumulator: Variable of the shape of the trained one.
        gradient: Dense, or `DistinctRows`.
    """
    updates.update(
        accumulator, lambda total, part: total.assign_add(part), (gradient,), {}
    )


def take(accumulator: Any, gradient: Any) -> Any:
    """Adds a gradient to its sum, and empties the sum.

    What other workers add at the same time is in what is taken, or stays for
    the next: nothing is lost.

    Args:
        accumulator: Variable of the shape of the trained one.
        gradient: Dense, or `DistinctRows`.

    Returns:
        The sum: dense, or for a sparse gradient the rows that are not zero,
        as `DistinctRows`.
    """
    if isinstance(gradient, tf.IndexedSlices):
        add(accumulator, gradient)
        return _take_rows(accumulator)

    def take_all(total: Any, part: tf.Tensor) -> tf.Tensor:
        taken = tf.convert_to_tensor(total) + part
        total.assign(tf.zeros_like(taken))
        return taken

    taken = updates.update(accumulator, take_all, (gradient,), {})
    return tf.concat(taken, 0) if isinstance(taken, list) else taken


def _take_rows(accumulator: Any) -> DistinctRows:
    ids, values = [], []
    # The last offset is the number of rows.
    for shard, offset in zip(
        accumulator.shards, accumulator.layout.offsets, strict=False
    ):
        local_ids, rows = updates.update(shard, _take_rows_of_shard, (), {})
        ids.append(local_ids + offset)
        values.append(rows)
    return DistinctRows(
        tf.concat(values, 0),
        tf.concat(ids, 0),
        tf.constant(accumulator.shape.as_list(), tf.int64),
    )


def _take_rows_of_shard(shard: Any) -> tuple[tf.Tensor, tf.Tensor]:
    whole = tf.convert_to_tensor(shard)
    is_touched = tf.reduce_any(
        tf.not_equal(whole, 0), list(range(1, len(whole.shape)))
    )
    ids = tf.reshape(tf.where(is_touched), [-1])
    view = views.RowsView(shard, ids)
    rows = view.read()
    # Not by subtracting: infinity less infinity would stay for ever.
    view.assign("assign", tf.zeros_like(rows))
    return ids, rows

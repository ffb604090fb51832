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
        accumulators: One variable for each gradient, as in `add`.
        gradients: Dense, or `DistinctRows`.
        is_last: Whether this step completes the sums; a boolean scalar.
        use: Receives the sums, as `take` returns them.
    """
    pairs = list(zip(accumulators, gradients, strict=True))

    def add_all() -> None:
        for pair in pairs:
            add(*pair)

    branches.run_if(
        is_last, lambda: use([take(*pair) for pair in pairs]), add_all
    )


def add(accumulator: Any, gradient: Any) -> None:
    """Adds a gradient to its sum, on the parameter servers.

    Args:
        accumulator: Variable with the shape of the trained variable.
        gradient: Dense, or `DistinctRows`.
    """
    updates.update(
        accumulator, lambda total, part: total.assign_add(part), (gradient,), {}
    )


def take(accumulator: Any, gradient: Any) -> Any:
    """Adds a gradient to its sum, then takes and clears the sum.

    Gradients that other workers add at the same time are either taken too, or
    stay for the next call: none is lost.

    Args:
        accumulator: Variable with the shape of the trained variable.
        gradient: Dense, or `DistinctRows`.

    Returns:
        The sum: dense or, for a sparse gradient, its nonzero rows as
        `DistinctRows`.
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
    # Assigns zeros: subtraction would turn infinity into a NaN that stays.
    view.assign("assign", tf.zeros_like(rows))
    return ids, rows

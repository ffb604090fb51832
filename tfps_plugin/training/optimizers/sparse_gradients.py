"""Clips gradients of which some are rows, and sums them over several steps.

Keras's own clipping is made for dense gradients: it converts sparse ones to
whole tables, and counts an id that occurs twice as two gradients. Sums are kept
on the parameter servers.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras_optimizers
from tfps_plugin.strategy import updates
from tfps_plugin.training.optimizers import branches
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.updates import views


def clip(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    """Clips gradients according to the settings of an optimizer.

    Args:
        optimizer: A Keras optimizer, with at most one of `clipnorm`,
            `global_clipnorm` and `clipvalue`.
        gradients: Tensors and `DistinctRows`.
        variables: The variable of each gradient.

    Returns:
        The clipped gradients, in order.
    """
    if optimizer.clipnorm and optimizer.clipnorm > 0:
        return _clip_by_norms(optimizer, gradients, variables)
    if optimizer.global_clipnorm and optimizer.global_clipnorm > 0:
        return _clip_by_global_norm(gradients, optimizer.global_clipnorm)
    if optimizer.clipvalue and optimizer.clipvalue > 0:
        limit = optimizer.clipvalue
        return [
            on_values(g, lambda v: tf.clip_by_value(v, -limit, limit))
            for g in gradients
        ]
    return list(gradients)


def on_values(gradient: Any, function: Any) -> Any:
    """Applies a function to the values of a gradient, and keeps its ids."""
    if isinstance(gradient, tf.IndexedSlices):
        values = function(gradient.values)
        if isinstance(gradient, DistinctRows):
            return gradient.with_values(values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return function(gradient)


def values_of(gradient: Any) -> tf.Tensor:
    """Returns the values of a gradient, without rows that are surely zero."""
    if isinstance(gradient, tf.IndexedSlices):
        return gradient.values
    return tf.convert_to_tensor(gradient)


def _clip_by_norms(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    limit = optimizer.clipnorm
    total_over_ps = StepTrace.current().total_over_ps
    if total_over_ps is None:
        # Missing rows are zero: the norm equals that of the whole table.
        return [
            on_values(g, lambda v: tf.clip_by_norm(v, limit)) for g in gradients
        ]
    places = [keras_optimizers.index_of(optimizer, v) for v in variables]
    num_places = keras_optimizers.num_variables(optimizer)
    part = tf.zeros([num_places])
    if gradients:
        part = tf.scatter_nd(
            [[place] for place in places],
            tf.stack([_square_of(g) for g in gradients]),
            [num_places],
        )
    squares = total_over_ps(part)
    return [
        on_values(
            g,
            # In the order of Keras's own operations.
            lambda v, square=squares[place]: (
                v * limit / tf.cast(tf.maximum(tf.sqrt(square), limit), v.dtype)
            ),
        )
        for g, place in zip(gradients, places, strict=True)
    ]


def _square_of(gradient: Any) -> tf.Tensor:
    """Returns the square of a gradient's norm, a float32 scalar."""
    return tf.reduce_sum(tf.square(tf.cast(values_of(gradient), tf.float32)))


def _clip_by_global_norm(gradients: Sequence[Any], limit: float) -> list[Any]:
    """Does what `keras.src.optimizers.base_optimizer.clip_by_global_norm` does.

    As there, a norm that is not finite makes all gradients NaN.
    """
    square = tf.zeros([])
    if gradients:
        square = tf.add_n([_square_of(g) for g in gradients])
    total_over_ps = StepTrace.current().total_over_ps
    if total_over_ps is not None:
        square = total_over_ps(square[tf.newaxis])[0]
    norm = tf.sqrt(square)
    scale = limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
    return [
        on_values(g, lambda v: v * tf.cast(scale, v.dtype)) for g in gradients
    ]


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
    only_on = StepTrace.current().only_on
    # The last offset is the number of rows.
    for shard, offset in zip(
        accumulator.shards, accumulator.layout.offsets, strict=False
    ):
        if only_on not in (None, shard.device):
            continue
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

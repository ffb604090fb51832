"""Clips dense gradients and gradients of rows.

Keras's own clipping is made for dense gradients: it converts sparse ones to
whole tables, and counts an id that occurs twice as two gradients.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.lookup.distinct_rows import DistinctRows


def clip(optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
    """Clips gradients according to the settings of an optimizer.

    Args:
        optimizer: A Keras optimizer, with at most one of `clipnorm`,
            `global_clipnorm` and `clipvalue`.
        gradients: Tensors and `DistinctRows`.

    Returns:
        The clipped gradients, in order.
    """
    if optimizer.clipnorm and optimizer.clipnorm > 0:
        return [_clip_by_norm(g, optimizer.clipnorm) for g in gradients]
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


def _clip_by_norm(gradient: Any, limit: float) -> Any:
    # Missing rows are zero: the norm equals that of the whole table.
    return on_values(gradient, lambda v: tf.clip_by_norm(v, limit))


def _clip_by_global_norm(gradients: Sequence[Any], limit: float) -> list[Any]:
    """Does what `keras.src.optimizers.base_optimizer.clip_by_global_norm` does.

    As there, a norm that is not finite makes all gradients NaN.
    """
    squares = [
        tf.reduce_sum(tf.square(tf.cast(values_of(g), tf.float32)))
        for g in gradients
    ]
    norm = tf.sqrt(tf.add_n(squares))
    scale = limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
    return [
        on_values(g, lambda v: v * tf.cast(scale, v.dtype)) for g in gradients
    ]

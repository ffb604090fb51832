"""Losses that cannot be averaged over the examples of several workers."""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors

# Their values are means over the examples of a batch, or elements of them.
_MEANS = ("sum_over_batch_size", "mean")


def require_means(model: Any) -> None:
    """Refuses losses that are not means over a batch.

    A step that workers or replicas make together takes the mean over the
    examples of all. The mean of the sums of several batches is not the sum over
    all of them.

    Args:
        model: A compiled Keras model.

    Raises:
        UnsupportedError: If a loss is a sum, or a mean by weights.
    """
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        reduction = getattr(loss, "reduction", _MEANS[0])
        if reduction not in _MEANS:
            raise errors.UnsupportedError(
                "A step of several workers or replicas takes the mean over the "
                "examples of all. Expected losses that are means over a batch, "
                'with reduction="sum_over_batch_size". Received: '
                f"loss={loss.name!r}, reduction={reduction!r}. Give the loss "
                "that reduction, or train with consistency=tfps.Async() and "
                "replicas_per_worker=1."
            )

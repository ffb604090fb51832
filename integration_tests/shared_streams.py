"""A model that carries states from batch to batch, and two streams for it."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

# Number of streams: each batch has the next part of all of them.
SIZE = 2
_STEPS = 6
_VALUES = (
    np.random.default_rng(9)
    .normal(size=(_STEPS * SIZE, 5, 2))
    .astype("float32")
)
_TARGETS = _VALUES[:, 0, :1]


def model() -> keras.Model:
    """Returns a compiled model."""
    keras.utils.set_random_seed(3)
    made = keras.Sequential(
        [
            keras.Input(batch_shape=(SIZE, 5, 2)),
            keras.layers.LSTM(3, stateful=True),
            keras.layers.Dense(1),
        ]
    )
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def dataset(context: Any = None) -> tf.data.Dataset:
    """Returns the batches of the streams, in order."""
    del context
    return tf.data.Dataset.from_tensor_slices((_VALUES, _TARGETS)).batch(
        SIZE, drop_remainder=True
    )


def data(*, by_workers: bool) -> dict[str, Any]:
    """Returns arguments of `fit`.

    Args:
        by_workers: Whether workers read the streams, and not the chief.
    """
    if by_workers:
        return {"x": tfps.DatasetCreator(dataset)}
    return {"x": _VALUES, "y": _TARGETS, "batch_size": SIZE, "shuffle": False}

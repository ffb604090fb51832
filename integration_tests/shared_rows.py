"""A model whose table counts how often each row was trained on.

It counts under every consistency: a step adds one to each row of its batch,
whatever the number of workers that make it.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

BATCH = 4


class Counting(keras.optimizers.SGD):
    """Moves each weight against the sign of its gradient, by one."""

    def __init__(self) -> None:
        super().__init__(1.0)

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        super().update_step(tf.sign(gradient), variable, learning_rate)


class On(keras.layers.Layer):
    """Has its inputs pass by a device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns the inputs."""
        with tf.device(self.device):
            return 1.0 * inputs


def model(
    strategy: Any, num_rows: int, device: str | None = None
) -> tuple[keras.Model, Any]:
    """Returns a model of the numbers of rows, and the steps of each worker.

    Args:
        strategy: Has its variables.
        num_rows: Number of rows.
        device: Takes part in each step; None: no other does.
    """
    with strategy.scope():
        steps = tf.Variable(0, per_worker_variable=True)
        made = keras.Sequential(
            [
                keras.Input((), dtype="int64"),
                keras.layers.Embedding(num_rows, 1, "zeros"),
                *([] if device is None else [On(device)]),
            ]
        )

        def loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
            del y_true
            steps.assign_add(1)
            return -y_pred[:, 0]

        made.compile(Counting(), loss)
    return made, steps


def counts(model: keras.Model) -> np.ndarray:
    """Returns how often each row was trained on."""
    return model.layers[0].embeddings.numpy()[:, 0]


def numbers(begin: Any, size: Any) -> tf.data.Dataset:
    """Returns batches of the numbers of some rows, and as many targets."""
    rows = tf.data.Dataset.range(begin, begin + size, output_type=tf.int64)
    batches = rows.batch(BATCH)
    return tf.data.Dataset.zip((batches, batches))


def of_splits(
    num_splits: int, num_rows: int, visitation: str = "at_least_once"
) -> tfps.DatasetCreator:
    """Returns input of splits.

    Args:
        num_splits: Number of splits.
        num_rows: Number of all rows.
        visitation: Option of the input.
    """
    size = num_rows // num_splits
    return tfps.DatasetCreator(
        lambda number: numbers(number * size, size),
        splits=range(num_splits),
        visitation=visitation,
    )


def of_workers(num_workers: int, num_rows: int) -> tfps.DatasetCreator:
    """Returns input of which each worker has an equal part.

    Args:
        num_workers: Number of workers.
        num_rows: Number of all rows.
    """
    size = num_rows // num_workers
    return tfps.DatasetCreator(
        lambda context: numbers(context.input_pipeline_id * size, size)
    )

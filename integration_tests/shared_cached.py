"""A model whose rows tell the step that wrote them."""

from typing import Any

import keras
import tensorflow as tf

import tfps_plugin as tfps

NUM_ROWS = 40


def layer_of(
    initializer: Any = "zeros", **options: Any
) -> tfps.layers.DistributedEmbedding:
    """Returns a layer with one table, which adds up three rows.

    Args:
        initializer: Initial values of the table.
        **options: Arguments of the layer.
    """
    table = tfps.layers.TableConfig(
        "items", NUM_ROWS, 4, initializer, combiner="sum"
    )
    return tfps.layers.DistributedEmbedding(
        tfps.layers.FeatureConfig("item", table, (None, 3), (None, 4)),
        **options,
    )


class Telling(keras.Model):
    """Returns the ages of the youngest and oldest row that a step has read.

    Each step looks up all rows and adds one to each, and counts itself. So the
    age of a row is the number of steps less the row.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed = layer_of(**options)
        self.embed.build()
        self.made = self.add_weight(
            shape=(), initializer="zeros", trainable=False, name="made"
        )
        self.built = True

    def _ages(self) -> tf.Tensor:
        ids = tf.reshape(tf.range(NUM_ROWS), [-1, 1]) + tf.zeros(
            [1, 3], tf.int32
        )
        # Three times the same.
        return tf.convert_to_tensor(self.made) - self.embed(ids) / 3.0

    def train_step(self, data: Any) -> dict[str, Any]:
        """Makes one step."""
        with tf.GradientTape() as tape:
            ages = self._ages()
            # Every row gets a gradient of minus one.
            loss = tf.reduce_sum(ages)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.made.assign_add(1.0)
        return _extremes(ages)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Reads all rows."""
        return _extremes(self._ages())


def _extremes(ages: tf.Tensor) -> dict[str, Any]:
    return {"youngest": tf.reduce_min(ages), "oldest": tf.reduce_max(ages)}


def telling(strategy: Any, **options: Any) -> Telling:
    """Returns a compiled model.

    Args:
        strategy: The strategy.
        **options: Arguments of the layer.
    """
    with strategy.scope():
        model = Telling(**options)
        model.compile(keras.optimizers.SGD(1.0), steps_per_execution=1)
    return model


def ages_seen(model: Telling, steps: int) -> list[tuple[float, float]]:
    """Trains some steps.

    Returns:
        The ages of the youngest and oldest row that each has read.
    """
    seen: list[tuple[float, float]] = []
    model.fit(
        tf.data.Dataset.range(steps).batch(1),
        verbose=0,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda _, logs: seen.append(
                    (logs["youngest"], logs["oldest"])
                )
            )
        ],
    )
    return seen

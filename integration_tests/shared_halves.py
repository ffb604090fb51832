"""A model of which each half may be on a worker of its own."""

import keras
import numpy as np
import tensorflow as tf

FEATURES = np.random.default_rng(0).normal(size=(96, 8)).astype(np.float32)
TARGETS = np.sin(FEATURES.sum(1))


class Halves(keras.Model):
    """Two halves; `devices` names where each computes, and may be None."""

    def __init__(self, *devices: str | None) -> None:
        super().__init__()
        self.devices = devices
        self.lower = keras.Sequential(
            [keras.layers.Dense(16, "tanh"), keras.layers.Dense(16, "silu")]
        )
        self.upper = keras.Sequential(
            [keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
        )

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Builds both halves."""
        self.lower.build(input_shape)
        self.upper.build((None, 16))
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Computes the lower half, and then the upper one."""
        lower, upper = self.devices
        with tf.device(lower):
            x = self.lower(x)
        with tf.device(upper):
            return self.upper(x)


def halves(*devices: str | None) -> Halves:
    """Returns a compiled model, always with the same weights."""
    keras.utils.set_random_seed(1)
    model = Halves(*devices)
    model.build((None, FEATURES.shape[1]))
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"]
    )
    return model


def fit(model: keras.Model, epochs: int = 2) -> None:
    """Trains on all examples, in their order."""
    model.fit(
        FEATURES,
        TARGETS,
        batch_size=16,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )

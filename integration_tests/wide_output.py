"""A model with a wide output layer; a plain process loads it, too."""

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

NUM_CLASSES = 1000
FEATURES = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
CLASSES = np.random.default_rng(1).integers(0, NUM_CLASSES, 64)


@keras.saving.register_keras_serializable("integration_tests")
class OutputOnPs(keras.layers.Layer):
    """A dense layer that computes on the parameter server of its weights."""

    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(**options)
        self.dense = keras.layers.Dense(units)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Builds it on one parameter server."""
        with tfps.on_ps(self.dense):
            self.dense.build(input_shape)
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Computes the logits."""
        with tfps.on_ps(self.dense):
            return self.dense(x)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of the constructor."""
        return {**super().get_config(), "units": self.dense.units}


def compiled(output: keras.layers.Layer, optimizer: Any) -> keras.Model:
    """Returns a compiled model that ends with an output layer."""
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(32, "tanh"), output]
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


if __name__ == "__main__":
    loaded = keras.models.load_model(sys.argv[1])
    print("logits", float(np.sum(np.abs(loaded.predict(FEATURES, verbose=0)))))

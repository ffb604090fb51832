"""Statistics of many slices, and an ensemble with a model for each.

    python examples/map_reduce.py

Any TensorFlow function can run on the workers: `coordinator.reduce` combines
its results for slices of data, and `coordinator.map` returns them. If a worker
is lost, the others take its slices.
"""

import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

NUM_SLICES = 24
NUM_FEATURES = 10
TRAINING_STEPS = 300

random = np.random.default_rng(1)
truth = random.normal(size=NUM_FEATURES).astype("float32")


def draw(num_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns features, and noisy labels that they decide."""
    features = random.normal(size=(num_examples, NUM_FEATURES))
    noise = random.logistic(size=num_examples)
    labels = features @ truth + 2.0 * noise > 0
    return features.astype("float32"), labels.astype("float32")


# Slices have different sizes, as files do.
slices = [draw(int(size)) for size in random.integers(40, 400, NUM_SLICES)]
test_features, test_labels = draw(20_000)

cluster = tfps.LocalCluster(num_workers=2, num_ps=1)
strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
coordinator = tfps.ClusterCoordinator(strategy)


# Sizes differ: without this option, each would be traced by itself.
@tf.function(reduce_retracing=True)
def moments(data: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the means of features and of their squares."""
    features, _ = data
    return tf.reduce_mean(features, 0), tf.reduce_mean(features**2, 0)


@tf.function(reduce_retracing=True)
def train(data: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    """Returns the weights of a logistic regression on one slice."""
    features, labels = data
    weights = tf.zeros([NUM_FEATURES])
    for _ in tf.range(TRAINING_STEPS):
        chances = tf.sigmoid(tf.linalg.matvec(features, weights))
        gradient = tf.linalg.matvec(
            features, chances - labels, transpose_a=True
        ) / tf.cast(tf.size(labels), tf.float32)
        weights -= 0.5 * gradient
    return weights


# Means of slices, weighed by the numbers of their examples.
means, squares = coordinator.reduce(moments, slices, "mean")
together = np.concatenate([features for features, _ in slices])
np.testing.assert_allclose(means, together.mean(0), atol=1e-5)
np.testing.assert_allclose(squares, (together**2).mean(0), rtol=1e-5)
print(f"{len(together)} examples, mean of the first feature {means[0]:.4f}")

# An ensemble: the chances that the models of all slices give, on average.
models = np.stack(list(coordinator.map(train, slices, verbose=1)))
chances = 1 / (1 + np.exp(-test_features @ models.T))


def accuracy(chances: np.ndarray) -> float:
    """Returns the share of test examples that are told right."""
    return float(np.mean((chances > 0.5) == test_labels))


alone = [accuracy(each) for each in chances.T]
print(f"accuracy of one model {np.mean(alone):.4f} on average")
print(f"accuracy of the ensemble {accuracy(chances.mean(1)):.4f}")

coordinator.close()
cluster.stop()

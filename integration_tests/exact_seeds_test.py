"""Tests that no two workers or lanes draw the same numbers."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

_DRAWS = 40


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=1) as cluster:
        yield cluster


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


class Unseeded(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x + keras.random.normal((64,))


class OwnGenerator(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(5)

    def call(self, x: Any) -> Any:
        return x + keras.random.uniform((64,), seed=self.generator)


def _results(
    strategy: tfps.ParameterServerStrategy, layer: Any
) -> list[np.ndarray]:
    """Returns a layer's results in many closures; the chief calls it, too."""
    coordinator = tfps.ClusterCoordinator(strategy)

    @tf.function
    def call() -> tf.Tensor:
        return layer(tf.ones([64]), training=True)

    results = []
    for _ in range(2):
        values = [coordinator.schedule(call) for _ in range(_DRAWS)]
        coordinator.join()
        results += [np.asarray(value.fetch()) for value in values]
        layer(tf.ones([64]), training=True)
    return results


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.Dropout(0.5),
        lambda: keras.layers.Dropout(0.5, seed=3),
        lambda: keras.layers.GaussianNoise(1.0),
        lambda: keras.layers.AlphaDropout(0.5),
        OwnGenerator,
        Unseeded,
    ],
    ids=["dropout", "seeded", "noise", "alpha", "generator", "unseeded"],
)
def test_nothing_is_drawn_twice(
    strategy: tfps.ParameterServerStrategy, make: Callable[[], Any]
) -> None:
    # Called on the chief, before the scope: Keras keeps that generator.
    keras.utils.set_random_seed(1)
    keras.random.normal((2,))
    with strategy.scope():
        layer = make()
    drawn = _results(strategy, layer)
    assert len({result.tobytes() for result in drawn}) == 2 * _DRAWS


def test_the_global_generator_outlives_a_cluster() -> None:
    keras.utils.set_random_seed(1)
    for _ in range(2):
        with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
            strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
            with strategy.scope():
                layer = Unseeded()
            drawn = _results(strategy, layer)
            tfps.ClusterCoordinator(strategy).close()
        assert len({result.tobytes() for result in drawn}) == 2 * _DRAWS

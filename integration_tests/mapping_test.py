"""Tests of `map` and `reduce` on a cluster whose workers die."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

_random = np.random.default_rng(7)
# Slices of different sizes.
_SLICES = [
    _random.normal(size=(int(size), 3)).astype("float32")
    for size in _random.integers(1, 60, 40)
]
_WHOLE = np.concatenate(_SLICES)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


_CONSISTENCIES: dict[str, Any] = {
    "async": tfps.Async(),
    "local steps": tfps.Async(local_steps=3),
    "bounded": tfps.BoundedStaleness(2),
    "sync": tfps.Sync(),
    "backup": tfps.Sync(backup_workers=1),
}


@pytest.fixture(params=_CONSISTENCIES)
def strategy(
    cluster: tfps.LocalCluster, request: pytest.FixtureRequest
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=_CONSISTENCIES[request.param],
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()
    cluster.wait_until_ready()


@tf.function(reduce_retracing=True)
def _moments(x: tf.Tensor) -> Any:
    return {"mean": tf.reduce_mean(x, 0), "count": tf.shape(x, tf.int64)[0]}


def test_slices_have_the_numbers_of_the_whole(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    found = coordinator.reduce(_moments, _SLICES, "mean")
    np.testing.assert_allclose(found["mean"], _WHOLE.mean(0), atol=1e-6)
    counts = coordinator.reduce(lambda x: _moments(x)["count"], _SLICES)
    assert counts == len(_WHOLE)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_worker_that_is_killed_costs_no_result(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    ordered: bool,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    seen = Seen(coordinator)

    @tf.function(reduce_retracing=True)
    def numbered(item: Any) -> Any:
        number, x = item
        return number, tf.reduce_sum(x)

    results = coordinator.map(
        numbered, enumerate(_SLICES), ordered=ordered, max_in_flight=12
    )
    found = list(itertools.islice(results, 10))
    cluster.kill("worker", 0)
    found += results
    seen.wait_for(events.WorkerLost)
    cluster.start("worker", 0)
    seen.wait_for(events.WorkerReadmitted)
    numbers = [int(number) for number, _ in found]
    assert (numbers if ordered else sorted(numbers)) == [*range(len(_SLICES))]
    for number, total in found:
        np.testing.assert_allclose(
            total, _SLICES[number].sum(dtype="float64"), rtol=1e-3, atol=1e-4
        )


def test_gradients_of_slices_are_those_of_the_whole(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    """Functions use the variables on parameter servers."""
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(4, activation="tanh"),
                keras.layers.Dense(1),
            ]
        )
    alone = keras.models.clone_model(model)
    alone.set_weights(model.get_weights())

    def gradients(of: keras.Model, x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(of(x) - 1.0))
        found: list[tf.Tensor] = tape.gradient(loss, of.trainable_variables)
        return found

    function = tf.function(lambda x: gradients(model, x), reduce_retracing=True)
    coordinator = tfps.ClusterCoordinator(strategy)
    found = coordinator.reduce(function, _SLICES, "mean")
    for ours, theirs in zip(
        found, gradients(alone, tf.constant(_WHOLE)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)

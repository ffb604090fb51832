"""Tests of synchronous training with one worker: the numbers of one process.

It makes all steps, in the order of its input. So a state may pass from batch to
batch.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_streams
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=tfps.Sync()
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _assert_same(ours: keras.Model, alone: keras.Model) -> None:
    """Compares weights, and the states that the next batch would get."""
    pairs = zip(
        [*ours.get_weights(), *ours.layers[0].states],
        [*alone.get_weights(), *alone.layers[0].states],
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(one),
            keras.ops.convert_to_numpy(other),
            rtol=0,
            atol=1e-5,
        )


@pytest.mark.parametrize("who_reads", ["chief", "worker"])
def test_fit_carries_states_from_batch_to_batch(
    strategy: tfps.ParameterServerStrategy, who_reads: str
) -> None:
    def fit(model: keras.Model, *, by_workers: bool) -> list[float]:
        data = shared_streams.data(by_workers=by_workers)
        history = model.fit(**data, epochs=2, verbose=0).history
        losses: list[float] = history["loss"]
        return losses

    alone = shared_streams.model()
    expected = fit(alone, by_workers=False)
    with strategy.scope():
        ours = shared_streams.model()
    actual = fit(ours, by_workers=who_reads == "worker")
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    _assert_same(ours, alone)


def test_a_custom_loop_carries_states_from_batch_to_batch(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def trainer(model: keras.Model) -> Any:
        def train(values: Any, targets: Any) -> Any:
            with tf.GradientTape() as tape:
                error = model(values, training=True) - targets
                loss = tf.reduce_mean(tf.square(error))
            weights = model.trainable_variables
            model.optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        return train

    alone = shared_streams.model()
    train_alone = trainer(alone)
    expected = [float(train_alone(*each)) for each in shared_streams.dataset()]
    num_steps = len(expected)
    with strategy.scope():
        ours = shared_streams.model()
    train = trainer(ours)

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train, args=next(iterator))

    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(
        coordinator.create_per_worker_dataset(shared_streams.dataset)
    )
    losses = [
        coordinator.schedule(step, args=(iterator,)) for _ in range(num_steps)
    ]
    coordinator.join()
    actual = [float(each.fetch().values[0]) for each in losses]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    _assert_same(ours, alone)

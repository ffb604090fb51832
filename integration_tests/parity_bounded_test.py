"""Tests of bounded staleness with one worker: the numbers of one process."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_random = np.random.default_rng(3)


def _layers() -> list[Any]:
    return [
        keras.Input((3,), dtype="int32"),
        keras.layers.Embedding(40, 4),
        keras.layers.Flatten(),
        keras.layers.Dense(8, activation="tanh"),
        keras.layers.Dense(1),
    ]


def _compiled() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(_layers())
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"]
    )
    return model


_IDS = _random.integers(0, 40, (320, 3)).astype("int32")
_TARGETS = _random.normal(size=(320, 1)).astype("float32")


@pytest.mark.parametrize("source", ["of the worker", "of the chief"])
def test_one_worker_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, source: str
) -> None:
    def batches(context: Any = None) -> tf.data.Dataset:
        del context
        return tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS)).batch(16)

    alone = _compiled()
    expected = alone.fit(batches(), epochs=3, verbose=0).history
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=tfps.BoundedStaleness(0),
        sparse_update="exact",
    )
    with strategy.scope():
        ours = _compiled()
    is_of_worker = source == "of the worker"
    actual = ours.fit(
        tfps.DatasetCreator(batches) if is_of_worker else batches(),
        epochs=3,
        verbose=0,
    ).history
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=1e-4)
    weights = zip(ours.get_weights(), alone.get_weights(), strict=True)
    for mine, theirs in weights:
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)
    tfps.ClusterCoordinator(strategy).close()

"""Tests of workers with GPUs: `pytest -m gpu --all integration_tests`.

They are those of `parity_replicas_test`, with a replica on each GPU.
"""

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import shared_sync_parity as parity
import tensorflow as tf

import tfps_plugin as tfps

_LEAST_GPUS = 2
_NUM_GPUS = len(tf.config.list_physical_devices("GPU"))
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        _NUM_GPUS < _LEAST_GPUS,
        reason=f"needs {_LEAST_GPUS} GPUs, and TensorFlow's build for CUDA; "
        f"this machine shows {_NUM_GPUS}",
    ),
]

# GPUs multiply with fewer digits, and add up in another order.
_TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    """Yields a worker with all GPUs of this machine, and two ps."""
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "consistency",
    [tfps.Async(), tfps.BoundedStaleness(max_staleness=1), tfps.Sync()],
    ids=str,
)
@pytest.mark.parametrize("name", ["SGD, momentum", "Adam"])
def test_replicas_on_gpus_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str, consistency: object
) -> None:
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(parity.CASES[name]()),
        parity.Data(1).of_worker,
        strategy_options={
            "consistency": consistency,
            "scheduling": tfps.SchedulingOptions(
                max_closures_in_flight_per_worker=1
            ),
        },
    )
    parity.assert_same(actual, parity.in_one_process(name, 1), _TOLERANCE)


def test_ids_and_strings_stay_on_the_cpu(cluster: tfps.LocalCluster) -> None:
    words = ["a", "b", "c", "d"]
    data = tf.data.Dataset.from_tensor_slices(
        (words * 4, np.ones([16, 1], "float32"))
    ).batch(8)
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    try:
        assert len(strategy.replica_devices) == _NUM_GPUS
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input([], dtype="string"),
                    keras.layers.StringLookup(vocabulary=words),
                    keras.layers.Embedding(5, 4),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("adam", "mse")
        losses = model.fit(data, epochs=5, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
    finally:
        tfps.ClusterCoordinator(strategy).close()

"""Tests of workers with GPUs: `CUDA_VISIBLE_DEVICES=0,1 pytest -m gpu`.

Without that variable, tests of this repository hide all GPUs. They need
TensorFlow's build for CUDA. Samples have all of these tests: where there is no
GPU, each is skipped, before a cluster starts, and pytest prints why.
"""

import os
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_devices
import shared_mixed
import shared_sync_parity as parity
import tensorflow as tf

import tfps_plugin as tfps

_NUM_GPUS = len(tf.config.list_physical_devices("GPU"))
_SEEN = (
    f"TensorFlow sees {_NUM_GPUS}, with CUDA_VISIBLE_DEVICES="
    f"{os.environ.get('CUDA_VISIBLE_DEVICES')}"
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_NUM_GPUS < 1, reason=f"needs a GPU; {_SEEN}"),
]
_REPLICAS = [
    1,
    pytest.param(
        2,
        marks=pytest.mark.skipif(
            _NUM_GPUS < 2,
            # Servers of tasks have no option that cuts one into several.
            reason=f"two replicas need two physical GPUs; {_SEEN}",
        ),
    ),
]
if _NUM_GPUS:
    # Read when this process first uses a GPU, which no import does. The worker
    # needs memory of it, too, and products have all digits of their numbers.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

# GPUs add up in another order, and Adam amplifies what that changes.
_TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    """Yields a worker with all GPUs that this process sees, and two ps."""
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        yield cluster


@pytest.fixture(params=_REPLICAS)
def strategy(
    cluster: tfps.LocalCluster, request: pytest.FixtureRequest
) -> Iterator[tfps.ParameterServerStrategy]:
    """Yields a strategy whose workers have as many replicas, each on a GPU."""
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        replicas_per_worker=request.param,
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )
    gpus = tuple(f"/device:GPU:{n}" for n in range(request.param))
    # To which batches are copied ahead: also for one replica, which TensorFlow
    # places.
    assert strategy.copy_devices == gpus
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


@pytest.mark.parametrize("replicas", _REPLICAS)
@pytest.mark.parametrize(
    "consistency",
    [tfps.Async(), tfps.BoundedStaleness(max_staleness=1), tfps.Sync()],
    ids=str,
)
@pytest.mark.parametrize("name", ["SGD, momentum", "Adam"])
def test_replicas_on_gpus_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str, consistency: Any, replicas: int
) -> None:
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(parity.CASES[name]()),
        parity.Data(1).of_worker,
        strategy_options={
            "consistency": consistency,
            "replicas_per_worker": replicas,
            "scheduling": tfps.SchedulingOptions(
                max_closures_in_flight_per_worker=1
            ),
        },
    )
    parity.assert_same(
        actual, parity.in_one_process(name, 1), _TOLERANCE, _TOLERANCE
    )


def test_batches_that_are_copied_ahead_have_the_numbers_of_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        model = shared_mixed.compiled(shared_mixed.new_model())
    expected = shared_mixed.compiled(shared_mixed.new_model())
    logs = model.fit(
        tfps.DatasetCreator(shared_mixed.batches), epochs=3, verbose=0
    ).history
    expected_logs = expected.fit(
        shared_mixed.batches(), epochs=3, verbose=0, shuffle=False
    ).history
    for name, values in expected_logs.items():
        np.testing.assert_allclose(logs[name], values, rtol=_TOLERANCE)
    for mine, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_allclose(
            mine.numpy(), theirs.numpy(), rtol=_TOLERANCE, atol=1e-4
        )
    batches = shared_mixed.batches()
    np.testing.assert_allclose(
        model.predict(batches, verbose=0),
        expected.predict(batches, verbose=0),
        rtol=_TOLERANCE,
        atol=1e-4,
    )


def test_mixed_precision_has_the_losses_of_one_process(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    def new_model() -> keras.Model:
        # A share's gradients are those of fewer examples, and so larger. At
        # this scale, neither they nor those of a batch are too large for half
        # floats: steps with such are left out.
        model = shared_mixed.new_model()
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05), initial_scale=256.0
        )
        model.compile(optimizer, "mse")
        return model

    keras.config.set_dtype_policy("mixed_float16")
    try:
        with strategy.scope():
            model = new_model()
        expected = new_model()
    finally:
        keras.config.set_dtype_policy("float32")
    losses = model.fit(
        tfps.DatasetCreator(shared_mixed.batches), epochs=5, verbose=0
    ).history["loss"]
    expected_losses = expected.fit(
        shared_mixed.batches(), epochs=5, verbose=0, shuffle=False
    ).history["loss"]
    # Half floats have three digits.
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-2)


def test_ids_and_strings_stay_on_the_cpu(
    strategy: tfps.ParameterServerStrategy,
) -> None:
    shared_devices.require_ids_on_cpu(strategy, strategy.copy_devices)

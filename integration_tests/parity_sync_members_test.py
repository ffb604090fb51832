"""Tests that three workers in step give the numbers of one process.

`parity_sync_test` has two workers, `parity_sync_one_ps_test` one parameter
server. `shared_sync_parity` has the model, its data and the reference.
"""

from typing import Any

import keras
import numpy as np
import pytest
import shared_optimizers
import shared_sync_parity as parity
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=3, num_ps=2)

_WORKERS = 3
# Examples of the batches of each worker.
_SIZES = (16, 12, 5)
_DATA = parity.Data(_WORKERS)


@pytest.mark.sample(cases=1)
@pytest.mark.parametrize("name", parity.CASES)
def test_every_optimizer_and_option_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(parity.CASES[name]()),
        _DATA.of_worker,
    )
    parity.assert_same(
        actual,
        parity.in_one_process(name, _WORKERS),
        parity.TOLERANCES.get(name, parity.TOLERANCE),
    )


@pytest.mark.parametrize("name", shared_optimizers.WHOLE_MATRIX)
@pytest.mark.sample(cases=1)
def test_optimizers_of_whole_matrices_have_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, name: str
) -> None:
    make = shared_optimizers.WHOLE_MATRIX[name]
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(make()),
        _DATA.of_worker,
        partitioner=None,
    )
    parity.assert_same(
        actual,
        parity.in_one_process(name, _WORKERS),
        parity.TOLERANCES.get(name, parity.TOLERANCE),
    )


def _uneven(context: Any) -> tf.data.Dataset:
    """Returns the batches of a worker, of sizes of their own."""
    size = tf.gather(_SIZES, context.input_pipeline_id)
    return _DATA.of_worker(context).map(lambda x, y: (x[:size], y[:size]))


def _uneven_together() -> tf.data.Dataset:
    """Returns batches that have those of all workers behind each other."""
    parts = [
        np.concatenate(
            [each[:, :size] for each, size in zip(part, _SIZES, strict=True)],
            axis=1,
        )
        for part in (_DATA.ids, _DATA.targets)
    ]
    return tf.data.Dataset.from_tensor_slices(tuple(parts))


@pytest.mark.parametrize(
    "name", ["SGD, global_clipnorm", "Adagrad, accumulation", "SGD"]
)
@pytest.mark.sample(cases=1)
def test_batches_of_different_sizes_count_by_their_examples(
    cluster: tfps.LocalCluster, name: str
) -> None:
    """So do regularizers: each worker adds them to its loss."""
    penalty = keras.regularizers.L2(0.05)

    def make(optimizer: Any) -> keras.Model:
        return parity.new_model(
            optimizer,
            {
                "kernel_regularizer": penalty,
                "activity_regularizer": penalty,
                "bias_constraint": keras.constraints.NonNeg(),
            },
            {"embeddings_regularizer": penalty},
            {"embeddings_constraint": keras.constraints.MaxNorm(0.05, axis=1)},
            {"embeddings_constraint": keras.constraints.UnitNorm(axis=-1)},
        )

    expected = parity.trained(
        make(shared_optimizers.summing(parity.CASES[name]())),
        _uneven_together(),
    )
    actual = parity.on_cluster(
        cluster, lambda: make(parity.CASES[name]()), _uneven
    )
    parity.assert_same(
        actual, expected, parity.TOLERANCES.get(name, parity.TOLERANCE)
    )


def test_a_step_that_overflows_on_one_worker_is_skipped_by_all(
    cluster: tfps.LocalCluster,
) -> None:
    targets = _DATA.targets.copy()
    # Only scaled, its gradient is not finite.
    targets[2, 7] = 1e38

    def make() -> Any:
        return keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01),
            initial_scale=64.0,
            dynamic_growth_steps=10,
        )

    expected = parity.trained(
        parity.new_model(shared_optimizers.summing(make())),
        _DATA.of_all(targets),
    )
    actual = parity.on_cluster(
        cluster,
        lambda: parity.new_model(make()),
        lambda context: _DATA.of_worker(context, targets),
    )
    assert all(np.isfinite(weights).all() for weights in actual.weights)
    # Also the scale, and the numbers of steps with and without an update.
    parity.assert_same(actual, expected)

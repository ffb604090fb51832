"""Tests that fit() gives the numbers of one process, where it can.

With one worker, one step in flight and a fixed seed, training on a cluster is
not asynchronous, and single-process Keras is the reference.
"""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 500
_BATCH = 32
_BATCHES = 8
_TARGETS = np.random.default_rng(1).integers(0, 2, (_BATCH * _BATCHES, 1))


def _dataset(context: Any = None) -> tf.data.Dataset:
    """Returns batches in which no id occurs twice.

    Keras's Adagrad squares the parts of a repeated id's gradient instead of
    their sum, so it is no reference for repeated ids.
    """
    random = np.random.default_rng(5)
    ids = np.concatenate(
        [
            random.permutation(_ROWS)[: 4 * _BATCH].reshape(_BATCH, 4)
            for _ in range(_BATCHES)
        ]
    )
    return (
        tf.data.Dataset.from_tensor_slices(
            (ids.astype("int32"), _TARGETS.astype("float32"))
        )
        .repeat()
        .batch(_BATCH)
    )


def _with_table() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(_ROWS, 8),
            keras.layers.Flatten(),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _dense() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Rescaling(1 / _ROWS),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.2, seed=5),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def _compiled(model: str, optimizer: str, rate: float) -> keras.Model:
    keras.utils.set_random_seed(3)
    built = _with_table() if model == "table" else _dense()
    built.compile(
        getattr(keras.optimizers, optimizer)(rate),
        "binary_crossentropy",
        metrics=["accuracy"],
    )
    return built


# On tables, optimizers with momentum are lazy, so there is no parity.
# parity_optimizers_test.py has tests of sparse_update="exact".
@pytest.mark.compat
@pytest.mark.parametrize(
    ("model", "optimizer", "rate"),
    [
        ("table", "SGD", 0.1),
        ("table", "Adagrad", 0.1),
        ("dense", "Adam", 0.01),
    ],
)
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.sample(cases=3)
def test_one_step_at_a_time_is_training_in_one_process(
    cluster: tfps.LocalCluster,
    model: str,
    optimizer: str,
    rate: float,
    num_shards: int,
) -> None:
    alone = _compiled(model, optimizer, rate)
    expected = alone.fit(_dataset(), epochs=2, steps_per_epoch=25, verbose=0)
    # The first strategy of a process invalidates earlier variables.
    expected_weights = [weight.numpy() for weight in alone.weights]
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(num_shards),
        # A step that begins before the last update has a different gradient.
        scheduling=tfps.SchedulingOptions(prefetch_embeddings=False),
    )
    with strategy.scope():
        ours = _compiled(model, optimizer, rate)
    actual = ours.fit(
        tfps.DatasetCreator(_dataset),
        epochs=2,
        steps_per_epoch=25,
        verbose=0,
    )
    tfps.ClusterCoordinator(strategy).close()
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose(
            actual.history[name], expected.history[name], rtol=1e-4
        )
    for mine, theirs in zip(ours.weights, expected_weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-3, atol=1e-5)

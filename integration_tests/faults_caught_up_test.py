"""Tests of parameter servers that die while rows of their tables are behind.

With one worker and one step in flight, a restored shard has the rows of the
checkpoint, changed by all later steps as steps without a gradient.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_training
import tensorflow as tf

import tfps_plugin as tfps

_ROWS = 300
_BATCH = 8
_random = np.random.default_rng(0)
# A few ids are in every batch, most of them once.
_IDS = np.minimum(
    _random.zipf(1.3, (60 * _BATCH, 2)) - 1, _random.integers(0, _ROWS)
).astype("int32")
# Half of them are in the second shard.
_IDS[:, 1] += _ROWS // 2
_IDS %= _ROWS
_TARGETS = _random.integers(0, 2, (60 * _BATCH, 1)).astype("float32")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        yield cluster


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        lambda shape, dtype, axis=0: (
            [2 if shape[0] == _ROWS else 1] + [1] * (len(shape) - 1)
        ),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
        sparse_update="caught_up",
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


def _dataset(context: Any = None) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices((_IDS, _TARGETS))
        .repeat()
        .batch(_BATCH)
    )


def _model() -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(_ROWS, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        keras.optimizers.AdamW(0.02, weight_decay=0.05), "binary_crossentropy"
    )
    model.optimizer.build(model.trainable_variables)
    return model


def _in_one_process() -> keras.Model:
    model = _model()
    apply = model.optimizer.apply
    model.optimizer.apply = lambda gradients, variables=None: apply(
        [tf.convert_to_tensor(g) for g in gradients], variables
    )
    return model


def _pass_steps(model: keras.Model, number: int) -> None:
    """Makes steps of all rows without a gradient."""
    table = model.trainable_variables[0]
    for _ in range(number):
        model.optimizer.apply(
            [tf.zeros_like(v) for v in model.trainable_variables],
            model.trainable_variables,
        )
    assert table.shape == (_ROWS, 4)


def _assert_close(actual: Any, expected: Any, name: str) -> None:
    np.testing.assert_allclose(
        actual,
        expected,
        rtol=1e-4,
        atol=1e-5 * np.abs(expected).max(),
        err_msg=name,
    )


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.sample(cases=1)
def test_a_lost_shard_goes_on_from_its_checkpoint_by_steps_without_gradient(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    tmp_path: pathlib.Path,
    lost: int,
) -> None:
    survivor = _in_one_process()
    survivor.fit(_dataset(), steps_per_epoch=30, verbose=0)
    restored = _in_one_process()
    restored.set_weights(survivor.get_weights())
    restored.optimizer.load_own_variables(
        {
            str(number): variable.numpy()
            for number, variable in enumerate(survivor.optimizer.variables)
        }
    )
    survivor.fit(_dataset(), steps_per_epoch=20, verbose=0)
    _pass_steps(restored, 20)

    with strategy.scope():
        model = _model()
    dataset = tfps.DatasetCreator(_dataset)
    model.fit(dataset, steps_per_epoch=30, verbose=0)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    model.fit(dataset, steps_per_epoch=20, verbose=0)
    seen = shared_training.Seen(tfps.ClusterCoordinator(strategy))
    cluster.kill("ps", lost)
    cluster.start("ps", lost, wait=True)

    # The chief's own read notices, and waits.
    half = _ROWS // 2
    mine = [model.trainable_variables[0], *_slots(model)]
    of_survivor = [survivor.trainable_variables[0], *_slots(survivor)]
    of_restored = [restored.trainable_variables[0], *_slots(restored)]
    for actual, kept, passed in zip(
        mine, of_survivor, of_restored, strict=True
    ):
        parts = [
            (passed if shard == lost else kept).numpy()[rows]
            for shard, rows in enumerate((slice(0, half), slice(half, None)))
        ]
        _assert_close(actual.numpy(), np.concatenate(parts), actual.path)
    assert seen.recovered() == [lost]

    # Training goes on from there, as one process does.
    alone = _in_one_process()
    alone.set_weights(model.get_weights())
    alone.optimizer.load_own_variables(
        {
            str(number): variable.numpy()
            for number, variable in enumerate(model.optimizer.variables)
        }
    )
    model.fit(dataset, steps_per_epoch=30, verbose=0)
    alone.fit(_dataset(), steps_per_epoch=30, verbose=0)
    assert int(model.optimizer.iterations) == 80
    for mine_now, theirs in zip(model.weights, alone.weights, strict=True):
        np.testing.assert_allclose(
            mine_now.numpy(),
            theirs.numpy(),
            atol=1e-5 + 1e-4 * np.abs(theirs.numpy()).max(),
        )


def _slots(model: keras.Model) -> list[Any]:
    optimizer = model.optimizer
    return [optimizer._momentums[0], optimizer._velocities[0]]

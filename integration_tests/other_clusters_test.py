"""Tests of checkpoints and tables that move to other clusters."""

import pathlib

import keras
import numpy as np
import pytest
import shared_training
import tensorflow as tf

import tfps_plugin as tfps

_ROWS = 300
_WIDTH = 8
_BATCH = 8


@pytest.fixture(autouse=True)
def _tables_may_be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes increments of small tables partial."""
    monkeypatch.setattr(
        "tfps_plugin.recovery.incremental.row_marks.SMALLEST_TABLE_BYTES",
        _ROWS * _WIDTH * 4,
    )


def _model(strategy: tfps.ParameterServerStrategy, seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(_ROWS, _WIDTH),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def _train(model: keras.Model, first: int, end: int) -> None:
    """Trains these rows of the table, and no others."""
    ids = np.arange(first, end, dtype="int32")
    ids = np.stack([ids] * 4, axis=1)
    model.fit(ids, np.ones((len(ids), 1)), batch_size=_BATCH, verbose=0)


def test_any_number_of_parameter_servers(tmp_path: pathlib.Path) -> None:
    expected = None
    # There is one shard on each ps, so the shard boundaries change each time.
    for seed, num_ps in enumerate((2, 3, 1)):
        with tfps.LocalCluster(num_workers=1, num_ps=num_ps) as cluster:
            strategy = tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                tfps.partitioners.FixedShardsPartitioner(num_ps),
            )
            coordinator = tfps.ClusterCoordinator(strategy)
            model = _model(strategy, seed)
            manager = tfps.CheckpointManager(
                tfps.Checkpoint(model=model), tmp_path, full_every=2
            )
            restored = manager.restore_latest()
            if expected is not None:
                # The checkpoint is an increment, and from another cluster.
                assert restored is not None
                assert ".increments" in restored
                shared_training.assert_state(model, expected)
            devices = {
                index for _, index, _ in shared_training.shards_of(model)
            }
            assert devices == set(range(num_ps))
            _train(model, 0, _ROWS)
            manager.save()
            _train(model, 5, 50)
            manager.save()
            manager.sync()
            shared_training.assert_slots_are_trained(model)
            expected = shared_training.state_of(model)
            coordinator.close()


def test_a_table_from_outside_of_the_scope_serves_every_cluster() -> None:
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), 0
    )
    for _ in range(2):
        # Workers of both clusters have the same names, and copies of the table.
        with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
            strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
            coordinator = tfps.ClusterCoordinator(strategy)
            look_up = tf.function(lambda: table.lookup(tf.constant("b")))
            values = [coordinator.schedule(look_up) for _ in range(4)]
            assert [int(each.fetch()) for each in values] == [2] * 4
            coordinator.close()

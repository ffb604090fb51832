"""Test of exports while a parameter server dies."""

import pathlib

import keras
import numpy as np
from shared_training import At

import tfps_plugin as tfps
from tfps_plugin import serving

_STEPS = 40
_RANDOM = np.random.default_rng(8)
_IDS = _RANDOM.integers(-(2**63), 2**63 - 1, _STEPS * 8)
_TARGETS = _RANDOM.normal(size=(len(_IDS), 1)).astype("float32")


def test_a_lost_parameter_server_leaves_no_gap(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "exported"
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        with strategy.scope():
            ids = keras.Input((), dtype="int64")
            layer = tfps.layers.DynamicEmbedding(4, capacity=2000, name="ids")
            model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
            model.compile(keras.optimizers.Adam(0.01), "mse")
            model.optimizer.build(model.trainable_variables)
        checkpoint = tfps.Checkpoint(model=model)
        manager = tfps.CheckpointManager(checkpoint, tmp_path / "checkpoints")
        manager.save()
        manager.sync()

        def kill() -> None:
            cluster.kill("ps", 1)
            cluster.start("ps", 1)

        model.fit(
            _IDS,
            _TARGETS,
            batch_size=8,
            epochs=3,
            verbose=0,
            callbacks=[
                tfps.callbacks.ExportChanges(folder, save_freq=5),
                At({_STEPS + 12: kill}),
            ],
        )
        exported, rows = layer.export()
        table = serving.Tables(folder)["ids"]
        assert table.ids.tolist() == sorted(exported)
        np.testing.assert_array_equal(table.lookup(exported), rows)
        tfps.ClusterCoordinator(strategy).close()

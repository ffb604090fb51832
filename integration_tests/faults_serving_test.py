"""Tests of exports while a parameter server or the chief dies."""

import pathlib
import signal
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin import serving
from tfps_plugin.training.exports import row_copies
from tfps_plugin.training.exports.exporter import Exporter

_PROGRAM_SECONDS = 120.0
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


@pytest.mark.parametrize("moment", ["take", "write"])
def test_a_parameter_server_dies_during_an_export(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    folder = tmp_path / "exported"
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        seen = Seen(tfps.ClusterCoordinator(strategy))
        with strategy.scope():
            ids = keras.Input((), dtype="int64")
            layer = tfps.layers.DynamicEmbedding(
                4,
                capacity=100,
                eviction=tfps.layers.Eviction("least_recent"),
                name="ids",
            )
            model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
            model.compile(keras.optimizers.Adam(0.01), "mse")
            model.optimizer.build(model.trainable_variables)
        checkpoint = tfps.Checkpoint(model=model)
        manager = tfps.CheckpointManager(checkpoint, tmp_path / "checkpoints")
        manager.save()
        manager.sync()
        original = getattr(Exporter, moment)
        versions = []

        def dying(self: Exporter, *arguments: Any) -> Any:
            if (folder / "manifest.json").exists():
                # Read before and after: whole, or not there.
                tables = serving.Tables(folder)
                versions.append(tables.version)
                assert len(tables["ids"].ids) > 0
            if len(versions) == 2:
                cluster.kill("ps", 1)
                cluster.start("ps", 1)
            return original(self, *arguments)

        monkeypatch.setattr(Exporter, moment, dying)
        model.fit(
            np.arange(len(_IDS)),
            _TARGETS,
            batch_size=8,
            epochs=3,
            shuffle=False,
            verbose=0,
            callbacks=[tfps.callbacks.ExportChanges(folder, save_freq=5)],
        )
        assert seen.recovered() == [1]
        assert len(versions) > 3
        assert versions == sorted(versions)
        exported, rows = layer.export()
        assert len(set(exported)) == len(exported)
        table = serving.Tables(folder)["ids"]
        assert table.ids.tolist() == sorted(exported)
        np.testing.assert_array_equal(table.lookup(exported), rows)
        tfps.ClusterCoordinator(strategy).close()


def test_an_export_is_of_one_moment_when_the_model_goes_back(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "exported"
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            recovery=tfps.RecoveryOptions(restore="consistent"),
        )
        seen = Seen(tfps.ClusterCoordinator(strategy))
        layers = []
        with strategy.scope():
            ids = keras.Input((), dtype="int64")
            for ps, name in enumerate(["stays", "dies"]):
                layer = keras.layers.Embedding(50, 4, "ones", name=name)
                with tf.device(f"/job:ps/task:{ps}"):
                    layer.build()
                layers.append(layer)
            rows = [layer(ids) for layer in layers]
            model = keras.Model(ids, keras.layers.Add()(rows))
            model.compile(keras.optimizers.SGD(0.5), "mse")
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=model), tmp_path / "checkpoints"
        )
        manager.save()
        manager.sync()
        for layer in layers:
            layer.embeddings.assign(np.full((50, 4), 5.0))
        model.optimizer.iterations.assign(9)
        take, taken = row_copies.take, []

        def dying(*arguments: Any) -> Any:
            taken.append(take(*arguments))
            if len(taken) == 1:
                # After the rows of the one that stays.
                cluster.kill("ps", 1)
                cluster.start("ps", 1)
            return taken[-1]

        monkeypatch.setattr(row_copies, "take", dying)
        tfps.export_changes(model, folder)
        assert seen.recovered() == [1]
        tables = serving.Tables(folder)
        found = {name: np.unique(tables[name].rows).tolist() for name in tables}
        assert found == {"stays": [1.0], "dies": [1.0]}
        assert tables.step == int(model.optimizer.iterations) == 0
        tfps.ClusterCoordinator(strategy).close()


# Exports once, and again after a change; dies at a call of `os.fsync`.
_DYING = """
import os, signal, sys
import keras, numpy as np, tensorflow as tf
import tfps_plugin as tfps

folder, dies_at = sys.argv[1], int(sys.argv[2])
layer = tfps.layers.DynamicEmbedding(4, "ones", capacity=100, name="ids")
model = keras.Sequential([keras.Input((), dtype="int64"), layer])
layer.import_([1, 2], np.ones((2, 4)))
tfps.export_changes(model, folder)
layer.import_([2, 3], np.full((2, 4), 5.0))
original, calls = os.fsync, []

def fsync(number):
    calls.append(number)
    if len(calls) == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    original(number)

os.fsync = fsync
tfps.export_changes(model, folder)
print(len(calls))
"""


def _numbers(table: serving.Table) -> list[float]:
    numbers: list[float] = table.lookup([1, 2, 3], "zeros")[:, 0].tolist()
    return numbers


def test_a_chief_that_dies_during_an_export_leaves_a_whole_one(
    tmp_path: pathlib.Path,
) -> None:
    def export(folder: pathlib.Path, dies_at: int) -> Any:
        return subprocess.run(
            [sys.executable, "-c", _DYING, str(folder), str(dies_at)],
            stdout=subprocess.PIPE,
            check=False,
            text=True,
            timeout=_PROGRAM_SECONDS,
        )

    whole = export(tmp_path / "whole", 0)
    assert whole.returncode == 0
    num_calls = int(whole.stdout)
    # The first and last moments, and one in between.
    versions = []
    for dies_at in (1, num_calls - 1, num_calls):
        folder = tmp_path / str(dies_at)
        assert export(folder, dies_at).returncode == -signal.SIGKILL
        table = (tables := serving.Tables(folder))["ids"]
        versions.append(tables.version)
        expected = {1: [1, 1, 0], 2: [1, 5, 5]}[tables.version]
        assert _numbers(table) == expected
    assert versions == [1, 1, 2]
    # The next program goes on, and removes what was left.
    assert export(tmp_path / "1", 0).returncode == 0
    table = serving.Tables(tmp_path / "1")["ids"]
    assert _numbers(table) == [1, 5, 5]
    assert not list((tmp_path / "1").glob(".writing*"))

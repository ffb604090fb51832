"""Tests of tables without a vocabulary whose tasks die, come and go."""

import gc
import pathlib
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.variables.dynamic.directory_places import DirectoryPlaces
from tfps_plugin.variables.dynamic.shard.tallies import Tallies

# Each test loses tasks, or adds some, and takes long.
pytestmark = pytest.mark.sample(cases=2, group="faults_dynamic")

_BATCH = 8
_STEPS = 60
_RANDOM = np.random.default_rng(8)
# New ids come all the time: these are the places of a pool that grows.
_POOL = _RANDOM.integers(-(2**63), 2**63 - 1, 400)
_PLACES = np.stack(
    [
        _RANDOM.integers(0, 40 + 5 * (row // _BATCH), 4)
        for row in range(_STEPS * _BATCH)
    ]
)
_IDS = _POOL[_PLACES]
_TARGETS = _RANDOM.normal(size=(len(_IDS), 1)).astype("float32")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


Make = Callable[..., tuple[Any, keras.Model]]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    made = []

    def make(**options: Any) -> tuple[Any, keras.Model]:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            **options,
        )
        made.append(strategy)
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((4,), dtype="int64"),
                    tfps.layers.DynamicEmbedding(8, capacity=2000, name="ids"),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile(keras.optimizers.Adam(0.01), "mse")
            model.optimizer.build(model.trainable_variables)
        return strategy, model

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


def _fit(model: keras.Model, actions: dict[int, Any], epochs: int) -> Any:
    return model.fit(
        _IDS,
        _TARGETS,
        batch_size=_BATCH,
        shuffle=False,
        epochs=epochs,
        verbose=0,
        callbacks=[At(actions)],
    ).history["loss"]


def _assert_every_id_has_one_row(model: keras.Model) -> None:
    ids, rows = model.get_layer("ids").export()
    assert sorted(ids) == sorted(np.unique(_IDS))
    assert np.all(np.isfinite(rows))
    assert np.all(np.abs(rows).max(1) > 0)


@pytest.mark.parametrize("lost", [(1,), (0, 1)], ids=str)
@pytest.mark.parametrize("at", [10, _STEPS + 20])
def test_rows_are_found_after_ps_are_lost(
    cluster: tfps.LocalCluster,
    make: Make,
    tmp_path: pathlib.Path,
    lost: tuple[int, ...],
    at: int,
) -> None:
    strategy, model = make()
    seen = Seen(tfps.ClusterCoordinator(strategy))
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()

    def kill() -> None:
        for index in lost:
            cluster.kill("ps", index)
        for index in lost:
            cluster.start("ps", index)

    losses = _fit(model, {at: kill}, epochs=3)
    assert sorted(set(seen.recovered())) == list(lost)
    assert losses[-1] < losses[0]
    _assert_every_id_has_one_row(model)


# Those with clusters of their own come last: with another cluster, the job of
# the one that others share is over.


@pytest.mark.parametrize(
    "consistency", [tfps.Async(), tfps.Sync()], ids=lambda c: type(c).__name__
)
def test_rows_are_found_while_ps_come_and_go(consistency: Any) -> None:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as own:
        strategy = tfps.ParameterServerStrategy(
            own.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            consistency=consistency,
        )
        coordinator = tfps.ClusterCoordinator(strategy)
        with strategy.scope():
            layer = tfps.layers.DynamicEmbedding(8, capacity=2000, name="ids")
            model = keras.Sequential(
                [
                    keras.Input((4,), dtype="int64"),
                    layer,
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile(keras.optimizers.Adam(0.01), "mse")
        before = _fit(
            model,
            {
                20: lambda: coordinator.add_ps(own.add_ps()),
                _STEPS + 20: lambda: coordinator.remove_ps(0),
            },
            epochs=3,
        )
        assert before[-1] < before[0]
        _assert_every_id_has_one_row(model)
        coordinator.close()


def test_directories_of_the_past_are_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = set()
    note = DirectoryPlaces.note

    def noting(
        self: DirectoryPlaces, device: str, rows: range, name: str
    ) -> None:
        made.add((device, name))
        note(self, device, rows, name)

    monkeypatch.setattr(DirectoryPlaces, "note", noting)
    with tfps.LocalCluster(num_workers=1, num_ps=2) as own:
        strategy = tfps.ParameterServerStrategy(
            own.cluster_resolver, tfps.partitioners.FixedShardsPartitioner(2)
        )
        coordinator = tfps.ClusterCoordinator(strategy)
        with strategy.scope():
            layer = tfps.layers.DynamicEmbedding(4, capacity=2000)
            layer.build((None,))
        ids = tf.range(100, dtype=tf.int64)
        first = layer(ids, training=True)
        earlier = [
            weakref.ref(shard) for shard in layer.weights[0].value.shards
        ]
        coordinator.remove_ps(1)
        np.testing.assert_array_equal(layer(ids, training=True), first)
        both_on_one = [name for device, name in made if "task:0" in device]
        assert len(both_on_one) == 2
        coordinator.add_ps(own.add_ps())
        np.testing.assert_array_equal(layer(ids, training=True), first)
        assert layer.size() == 100
        shards = layer.weights[0].value.shards
        gc.collect()
        left = [shard() for shard in earlier if shard() is not None]
        assert all(any(each is shard for shard in shards) for each in left)
        there = {
            (device, name)
            for device, name in made
            if device in {shard.device for shard in shards}
            and _is_there(device, name)
        }
        coordinator.close()
    assert len(made) > 2
    assert len(there) == 2


def _is_there(device: str, name: str) -> bool:
    with tf.device(device):
        return bool(
            tf.raw_ops.VarIsInitializedOp(resource=Tallies(name, 1).handle())
        )

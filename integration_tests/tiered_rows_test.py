"""Tests of tables on the disks of parameter servers.

The truth is the same table in their memory.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_tiered
import tensorflow as tf
from shared_ps_changes import PsChanges
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin import serving
from tfps_plugin.monitoring import events
from tfps_plugin.recovery import failover
from tfps_plugin.training.exports import row_copies
from tfps_plugin.variables.storage import on_disk

# Some tests lose tasks, or add some, and every one moves large files.
pytestmark = pytest.mark.sample(cases=1, group="tiered_rows")

# A third has more than 32 MB, and so has a third of each slot.
_CAPACITY = 420_000
_WIDTH = 64
# About fifty pages of each shard.
_MEMORY_ROWS = 2_200
_BATCH, _STEPS = 64, 40
_RANDOM = np.random.default_rng(3)
_POOL = _RANDOM.integers(-(2**63), 2**63 - 1, 9_000)
_IDS = _POOL[_RANDOM.integers(0, len(_POOL), (_STEPS * _BATCH, 8))]
_TARGETS = _RANDOM.normal(size=(len(_IDS), 1)).astype("float32")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


def _strategy(
    cluster: tfps.LocalCluster, num_shards: int = 2, **options: Any
) -> Any:
    return tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(num_shards),
        **options,
    )


def _model(storage: tfps.TieredStorage | None, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    layer = tfps.layers.DynamicEmbedding(
        _WIDTH, capacity=_CAPACITY, name="ids", storage=storage, **options
    )
    model = keras.Sequential(
        [
            keras.Input((8,), dtype="int64"),
            layer,
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _fit(
    model: keras.Model,
    epochs: int = 1,
    ids: np.ndarray = _IDS,
    **options: Any,
) -> list[float]:
    losses: list[float] = model.fit(
        ids,
        _TARGETS,
        batch_size=_BATCH,
        shuffle=False,
        epochs=epochs,
        verbose=0,
        **options,
    ).history["loss"]
    return losses


def _wait_for_limits(model: keras.Model) -> int:
    """Waits until rows have left memory; returns the number of pages read."""
    table = model.get_layer("ids").weights[0]
    return shared_tiered.wait_for_limits(table, _MEMORY_ROWS / _CAPACITY)


def _rows(model: keras.Model) -> list[np.ndarray]:
    """Returns the rows and slots of the ids, in their order."""
    layer = model.get_layer("ids")
    records = np.asarray(layer.weights[1])
    used = np.flatnonzero(records[:, 1])
    used = used[np.argsort(records[used, 0])]
    slots = [
        slot
        for slot in model.optimizer.variables
        if tuple(slot.shape) == tuple(layer.weights[0].shape)
    ]
    assert len(slots) == 2
    return [
        records[used, 0],
        *[np.asarray(each)[used] for each in (layer.weights[0], *slots)],
    ]


def _assert_same(model: keras.Model, truth: list[np.ndarray]) -> None:
    for ours, expected in zip(_rows(model), truth, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_rows_and_slots_are_those_of_a_table_in_memory(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = _strategy(cluster, consistency=tfps.Sync())
    with strategy.scope():
        in_memory = _model(None)
        ours = _model(tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path)))
    losses = [_fit(in_memory) for _ in range(3)]
    found = []
    for number in range(3):
        found.append(_fit(ours))
        read = _wait_for_limits(ours)
        # The second epoch had to read what was not there any more.
        assert read > (0 if number == 0 else 500)
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    _assert_same(ours, _rows(in_memory))
    assert not list(tmp_path.iterdir())
    # Another process, without parameter servers, has the same rows.
    ours.save(tmp_path / "model.keras")
    with tf.distribute.get_strategy().scope():
        plain = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        plain.predict(_IDS[:100], verbose=0),
        in_memory.predict(_IDS[:100], verbose=0),
        rtol=1e-4,
        atol=1e-5,
    )
    tfps.ClusterCoordinator(strategy).close()


def test_rows_that_begin_anew_are_those_of_a_table_in_memory(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    # Some ids for ten steps, then others for thirty, each in one step only: in
    # the next epoch, all of them are too old by then.
    ids = np.arange(_IDS.size).reshape(_IDS.shape)
    ids[: 10 * _BATCH] %= 2_000
    strategy = _strategy(cluster, consistency=tfps.Sync())
    eviction = tfps.layers.Eviction(unseen_steps=40)
    with strategy.scope():
        in_memory = _model(None, eviction=eviction)
        ours = _model(
            tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path)), eviction=eviction
        )
    losses = [_fit(in_memory, ids=ids) for _ in range(3)]
    found = []
    for number in range(3):
        found.append(_fit(ours, ids=ids))
        assert _wait_for_limits(ours) > (0 if number == 0 else 500)
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    _assert_same(ours, _rows(in_memory))
    num_ids = len(np.unique(ids))
    for model in (in_memory, ours):
        layer = model.get_layer("ids")
        statistics = layer.statistics()
        assert layer.size() == num_ids
        assert statistics["made"] == 3 * num_ids
        assert statistics["evicted"] == 2 * num_ids
    tfps.ClusterCoordinator(strategy).close()


def test_a_checkpoint_has_all_rows(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = _strategy(cluster, consistency=tfps.Sync())
    storage = tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path / "rows"))
    with strategy.scope():
        model = _model(storage)
        other = _model(storage)
    _fit(model)
    _wait_for_limits(model)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )
    manager.save()
    manager.sync()
    truth = _rows(model)
    _fit(model)
    tfps.Checkpoint(model=other).restore(manager.latest_checkpoint)
    _assert_same(other, truth)
    _wait_for_limits(other)
    # Into a table that has other rows, too.
    tfps.Checkpoint(model=model).restore(manager.latest_checkpoint)
    _assert_same(model, truth)
    tfps.ClusterCoordinator(strategy).close()


def test_exports_have_the_rows_of_all_ids(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Copies rows as if they were too many for memory.
    monkeypatch.setattr(row_copies, "_MOST_BYTES", 0)
    strategy = _strategy(cluster, consistency=tfps.Sync())
    with strategy.scope():
        model = _model(tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path / "rows")))
    tables = None
    for ids in (_IDS[: 10 * _BATCH], _IDS[5 * _BATCH : 12 * _BATCH]):
        model.fit(ids, _TARGETS[: len(ids)], batch_size=_BATCH, verbose=0)
        export = tfps.export_changes(model, tmp_path / "out", compact_at=9)
        assert export is not None
        assert export.is_base == (tables is None)
        tables = serving.Tables(tmp_path / "out")
        found, rows = model.get_layer("ids").export()
        assert tables["ids"].ids.tolist() == sorted(found)
        np.testing.assert_array_equal(tables["ids"].lookup(found), rows)
    tfps.ClusterCoordinator(strategy).close()


@pytest.mark.parametrize("lost", [(1,), (0, 1)], ids=str)
def test_a_lost_ps_loses_nothing_that_a_checkpoint_has(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, lost: tuple[int, ...]
) -> None:
    strategy = _strategy(cluster, consistency=tfps.Sync())
    with strategy.scope():
        model = _model(tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path / "rows")))
    seen = Seen(tfps.ClusterCoordinator(strategy))
    _fit(model)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )
    manager.save()
    manager.sync()

    def kill() -> None:
        for index in lost:
            cluster.kill("ps", index)
        for index in lost:
            cluster.start("ps", index)

    truth = _rows(model)
    kill()
    # Waits until the rows are back.
    found = _rows(model)
    # Rows can be read a moment before it is told.
    seen.wait_for(events.ParameterServerRecovered, len(lost))
    assert sorted(set(seen.recovered())) == list(lost)
    for ours, expected in zip(found, truth, strict=True):
        np.testing.assert_array_equal(ours, expected)
    _wait_for_limits(model)
    # And in the middle of a step.
    _fit(model, epochs=2, callbacks=[At({10: kill})])
    _wait_for_limits(model)
    ids, rows = model.get_layer("ids").export()
    assert sorted(ids) == sorted(np.unique(_IDS))
    assert np.all(np.isfinite(rows))
    assert np.all(np.abs(rows).max(1) > 0)
    # The files of a process that was killed are gone with it.
    assert not list((tmp_path / "rows").iterdir())
    tfps.ClusterCoordinator(strategy).close()


def test_standby_copies_are_on_the_next_disk(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = _strategy(
        cluster,
        recovery=tfps.RecoveryOptions(
            replicate="ps", replicate_every_steps=1_000_000
        ),
    )
    with strategy.scope():
        model = _model(tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path)))
    known = failover.of(strategy)
    assert known is not None
    copies: Any = known._standby
    table = model.get_layer("ids").weights[0]

    def assert_copies_are_on_disk() -> None:
        shared_tiered.wait_for_regions(
            [
                copies._copies[id(each)].mirror
                for shard in table.value.shards
                for each in (shard, *shard.family)
                if tuple(each.shape)[1] == _WIDTH
            ],
            _MEMORY_ROWS / _CAPACITY,
        )

    seen = Seen(tfps.ClusterCoordinator(strategy))
    for lost in (1, 0):
        _fit(model)
        # The first copies all rows, the next one those that have changed.
        copies.update()
        _fit(model)
        copies.update()
        assert_copies_are_on_disk()
        truth = _rows(model)
        cluster.kill("ps", lost)
        cluster.start("ps", lost)
        found = _rows(model)
        for ours, expected in zip(found, truth, strict=True):
            np.testing.assert_array_equal(ours, expected)
        _wait_for_limits(model)
    seen.wait_for(events.ParameterServerRecovered, 2)
    assert all(
        "standby" in event.source
        for event in seen.of(events.ParameterServerRecovered)
    )
    # Files have no names.
    assert not list(tmp_path.iterdir())
    tfps.ClusterCoordinator(strategy).close()


def test_what_cannot_be_is_refused(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    storage = tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path))
    strategy = _strategy(cluster, sparse_update="exact")
    with strategy.scope():
        with pytest.raises(ValueError, match="/dev/shm is itself in memory"):
            _model(tfps.TieredStorage(_MEMORY_ROWS, "/dev/shm"))
        with pytest.raises(ValueError, match="Name a directory"):
            _model(tfps.TieredStorage(_MEMORY_ROWS, "/proc/rows"))
        model = _model(storage)
    with pytest.raises(errors.UnsupportedError, match="'exact'"):
        _fit(model)
    table = model.get_layer("ids").weights[0].value

    @tf.function
    def change() -> None:
        table.shards[0].assign_add(tf.ones(table.shards[0].shape))

    with pytest.raises(errors.UnsupportedError, match="assign_add"):
        change()
    tfps.ClusterCoordinator(strategy).close()


def test_memory_that_something_else_has_is_found_out(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of such memory TensorFlow makes a copy, which is not on disk."""
    held = []
    require = on_disk._require_in_file

    def hold_and_require(variable: Any, *place: Any) -> None:
        with tf.device(variable.device):
            held.append(
                tf.raw_ops.ReadVariableOp(
                    resource=variable.own_handle, dtype=variable.dtype
                )
            )
        require(variable, *place)

    monkeypatch.setattr(on_disk, "_require_in_file", hold_and_require)
    strategy = _strategy(cluster)
    with (
        strategy.scope(),
        pytest.raises(errors.InternalError, match="did not move to the disk"),
    ):
        _model(tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path)))
    assert held
    held.clear()
    tfps.ClusterCoordinator(strategy).close()


# Those with clusters of their own come last: with another cluster, the job of
# the one that others share is over.


@pytest.mark.parametrize("is_trained", [True, False])
def test_rows_move_to_a_new_ps(
    tmp_path: pathlib.Path, is_trained: bool
) -> None:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as own:
        strategy = _strategy(own, consistency=tfps.Sync())
        coordinator = tfps.ClusterCoordinator(strategy)
        with strategy.scope():
            model = _model(tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path)))
        if is_trained:
            _fit(model)
        truth = _rows(model)
        coordinator.add_ps(own.add_ps())
        _assert_same(model, truth)
        _wait_for_limits(model)
        losses = _fit(model, epochs=2)
        assert losses[-1] < losses[0]
        _wait_for_limits(model)
        coordinator.close()


def test_rows_move_while_steps_go_on(tmp_path: pathlib.Path) -> None:
    with tfps.LocalCluster(num_workers=2, num_ps=3) as own:
        strategy = _strategy(own, 3, consistency=tfps.Sync())
        with strategy.scope():
            in_memory = _model(None)
            ours = _model(tfps.TieredStorage(_MEMORY_ROWS, str(tmp_path)))
        losses = _fit(in_memory)
        # One leaves, and the table is cut anew; it comes back, and the table
        # is cut as it was.
        changes = PsChanges(own, {9: 0}, {29: 0})
        found = _fit(ours, callbacks=[changes])
        assert changes.num_changes == 2
        np.testing.assert_allclose(found, losses, rtol=1e-6)
        _assert_same(ours, _rows(in_memory))
        _wait_for_limits(ours)
        tfps.ClusterCoordinator(strategy).close()

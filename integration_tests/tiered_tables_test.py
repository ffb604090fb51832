"""Tests of tables with a vocabulary on the disks of parameter servers.

The truth is the same table in their memory, or in one process.
"""

import contextlib
import logging
import pathlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_tiered
import tensorflow as tf
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin import serving
from tfps_plugin.cluster.mapped_memory import tensor_memory
from tfps_plugin.monitoring import events
from tfps_plugin.recovery.checkpoints import shared_folder
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.training.exports.exporter import Exporter
from tfps_plugin.variables.storage import on_disk

# Some tests lose tasks, and every one moves large files.
pytestmark = pytest.mark.sample(cases=1, group="tiered_tables")

# Half of it has far more than 32 MB, and so has half of each slot: malloc may
# have put one of 36 MB where it had free memory.
_ROWS, _WIDTH = 420_000, 64
# Some eighty pages of each shard.
_MEMORY_ROWS = 2_700
_BATCH, _STEPS = 64, 20
_RANDOM = np.random.default_rng(3)
# Most have a page of their own.
_POOL = _RANDOM.choice(_ROWS, 2_000, replace=False)
_IDS = _POOL[_RANDOM.integers(0, len(_POOL), (_STEPS * _BATCH, 4))]
_TARGETS = _RANDOM.normal(size=(len(_IDS), 1)).astype("float32")
_SECONDS = 60.0

# A layer of Keras whose path the strategy has; a layer with an option.
_KINDS = ["path", "option"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


def _storage(directory: pathlib.Path) -> tfps.TieredStorage:
    return tfps.TieredStorage(_MEMORY_ROWS, str(directory))


def _strategy(
    cluster: tfps.LocalCluster, directory: pathlib.Path, **options: Any
) -> Any:
    return tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        **{
            "variable_partitioner": tfps.partitioners.FixedShardsPartitioner(2),
            "consistency": tfps.Sync(),
            "table_storage": {r"^items/embeddings$": _storage(directory)},
            **options,
        },
    )


def _layer(
    kind: str, storage: tfps.TieredStorage | None, **options: Any
) -> Any:
    """Returns the layer of the table, and its output for `ids`."""
    ids = keras.Input((4,), dtype="int64")
    if kind == "path":
        # The strategy has the other name only.
        name = "in_memory" if storage is None else "items"
        return ids, keras.layers.Embedding(_ROWS, _WIDTH, name=name)(ids)
    tables = [
        tfps.layers.TableConfig(
            "big", _ROWS, _WIDTH, combiner="sum", storage=storage
        ),
        tfps.layers.TableConfig("small", 1_000, _WIDTH, combiner="sum"),
    ]
    features = {
        table.name: tfps.layers.FeatureConfig(
            table.name, table, (None, 4), (None, _WIDTH)
        )
        for table in tables
    }
    layer = tfps.layers.DistributedEmbedding(
        features,
        table_stacking=None if storage is None else "auto",
        **options,
    )
    rows = layer({"big": ids, "small": ids % 1_000})
    return ids, keras.layers.Concatenate()([rows["big"], rows["small"]])


def _model(
    kind: str, storage: tfps.TieredStorage | None, optimizer: Any = None
) -> keras.Model:
    keras.utils.set_random_seed(1)
    ids, rows = _layer(kind, storage)
    model = keras.Model(
        ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    )
    model.compile(optimizer or keras.optimizers.Adam(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _fit(model: keras.Model, epochs: int = 1, **options: Any) -> list[float]:
    losses: list[float] = model.fit(
        _IDS,
        _TARGETS,
        batch_size=_BATCH,
        shuffle=False,
        epochs=epochs,
        verbose=0,
        **options,
    ).history["loss"]
    return losses


def _table(model: keras.Model) -> keras.Variable:
    (table,) = (
        each for each in model.trainable_variables if each.shape[0] == _ROWS
    )
    return table


def _wait_for_limits(model: keras.Model) -> int:
    return shared_tiered.wait_for_limits(_table(model), _MEMORY_ROWS / _ROWS)


def _contents(model: keras.Model) -> list[np.ndarray]:
    """Returns the rows, and the slots of the table."""
    slots = [
        each
        for each in model.optimizer.variables
        if tuple(each.shape) == (_ROWS, _WIDTH)
    ]
    assert slots
    return [np.asarray(each) for each in (_table(model), *slots)]


def _assert_same(model: keras.Model, truth: list[np.ndarray]) -> None:
    for ours, expected in zip(_contents(model), truth, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("kind", _KINDS)
def test_rows_and_slots_are_those_of_a_table_in_memory(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, kind: str
) -> None:
    strategy = _strategy(cluster, tmp_path)
    with strategy.scope():
        in_memory = _model(kind, None)
        ours = _model(kind, _storage(tmp_path))
    # Random initial values have left memory before there is a step.
    assert _wait_for_limits(ours) == 0
    _assert_same(ours, _contents(in_memory))
    losses = [_fit(in_memory) for _ in range(2)]
    found = []
    for number in range(2):
        found.append(_fit(ours))
        read = _wait_for_limits(ours)
        # The second epoch had to read what was not there any more.
        assert read > 3_000 * (number + 1)
    np.testing.assert_array_equal(found, losses)
    _assert_same(ours, _contents(in_memory))
    for method, arguments in (
        ("evaluate", (_IDS, _TARGETS)),
        ("predict", (_IDS[:200],)),
    ):
        # Workers add up their parts in any order.
        np.testing.assert_allclose(
            getattr(ours, method)(*arguments, verbose=0),
            getattr(in_memory, method)(*arguments, verbose=0),
            rtol=1e-5,
            atol=1e-6,
        )
    assert not list(tmp_path.iterdir())
    # Another process, without parameter servers, has the same rows.
    ours.save(tmp_path / "model.keras")
    with tf.distribute.get_strategy().scope():
        plain = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        np.asarray(_table(plain)), np.asarray(_table(in_memory))
    )
    # And again a cluster, where the table is on disk.
    with strategy.scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    _assert_same(again, _contents(in_memory))
    _wait_for_limits(again)
    tfps.ClusterCoordinator(strategy).close()


def test_training_has_the_numbers_of_one_process(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = _strategy(cluster, tmp_path, variable_partitioner=None)
    with tf.distribute.get_strategy().scope():
        plain = _model("path", None, keras.optimizers.Adagrad(0.1))
    with strategy.scope():
        ours = _model("path", _storage(tmp_path), keras.optimizers.Adagrad(0.1))
    ours.set_weights(plain.get_weights())
    losses, found = _fit(plain, 2), _fit(ours, 2)
    assert _wait_for_limits(ours) > 3_000
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    np.testing.assert_allclose(
        np.asarray(_table(ours)),
        np.asarray(_table(plain)),
        rtol=1e-3,
        # Adagrad makes steps of one size of the smallest gradients.
        atol=1e-4,
    )
    tfps.ClusterCoordinator(strategy).close()


def _sum_of_rows(storage: tfps.TieredStorage | None, **options: Any) -> Any:
    """Returns a model whose gradients do not depend on its rows."""
    keras.utils.set_random_seed(1)
    ids, rows = _layer("option", storage, **options)
    model = keras.Model(ids, rows)
    model.compile(
        keras.optimizers.SGD(0.1), lambda y, rows: keras.ops.mean(y * rows)
    )
    return model


def test_workers_may_cache_rows_that_are_on_disk(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = _strategy(cluster, tmp_path, consistency=tfps.Async())
    with strategy.scope():
        in_memory = _sum_of_rows(None)
        ours = _sum_of_rows(
            _storage(tmp_path), cache_rows=500, cache_max_age_steps=3
        )
    for model in (in_memory, ours):
        _fit(model, 2)
    assert _wait_for_limits(ours) > 2_000
    (layer,) = (
        each
        for each in ours.layers
        if isinstance(each, tfps.layers.DistributedEmbedding)
    )
    assert layer.cache_statistics()["hits"] > 0
    # Updates come in any order.
    np.testing.assert_allclose(
        np.asarray(_table(ours)),
        np.asarray(_table(in_memory)),
        rtol=1e-5,
        atol=1e-6,
    )
    tfps.ClusterCoordinator(strategy).close()


@pytest.mark.parametrize(
    ("kind", "num_shards"),
    [*((kind, 2) for kind in _KINDS), (_KINDS[0], 1)],
    ids=str,
)
def test_a_checkpoint_has_all_rows(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    kind: str,
    num_shards: int,
) -> None:
    strategy = _strategy(
        cluster,
        tmp_path / "rows",
        variable_partitioner=tfps.partitioners.FixedShardsPartitioner(
            num_shards
        ),
    )
    with strategy.scope():
        model = _model(kind, _storage(tmp_path / "rows"))
    _fit(model)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )
    manager.save()
    manager.sync()
    truth = _contents(model)
    _fit(model)
    tfps.Checkpoint(model=model).restore(manager.latest_checkpoint)
    _assert_same(model, truth)
    _wait_for_limits(model)
    # TensorFlow's own, too.
    saved = tf.train.Checkpoint(model=model).save(tmp_path / "own" / "saved")
    _fit(model)
    tf.train.Checkpoint(model=model).restore(saved)
    _assert_same(model, truth)
    _wait_for_limits(model)
    tfps.ClusterCoordinator(strategy).close()


def _bytes_held(cluster: tfps.LocalCluster, index: int) -> int:
    """Returns how much memory a ps has that is not that of a file."""
    process = cluster.process("ps", index)
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    (line,) = re.findall(r"RssAnon:\s+(\d+) kB", status)
    return int(line) * 1024


def _wait_for_less(
    cluster: tfps.LocalCluster, index: int, num_bytes: int
) -> None:
    """Waits until a ps has given up memory that it needed for a moment."""
    deadline = time.monotonic() + _SECONDS
    while _bytes_held(cluster, index) > num_bytes:
        assert time.monotonic() < deadline, _bytes_held(cluster, index)
        threading.Event().wait(0.05)


def test_exports_take_no_memory_for_the_table(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = _strategy(cluster, tmp_path / "rows")
    with strategy.scope():
        ours = _model(
            "path", _storage(tmp_path / "rows"), keras.optimizers.SGD(0.1)
        )
    table = _table(ours)
    write = Exporter.write
    before: list[int] = []

    def write_late(self: Exporter, taken: Any) -> Any:
        # The copies are there, of more than 50 MB on each.
        for index in range(2):
            _wait_for_less(cluster, index, before.pop(0) + 20_000_000)
        return write(self, taken)

    monkeypatch.setattr(Exporter, "write", write_late)
    folder = tmp_path / "exported"

    def export() -> tuple[int, serving.Tables]:
        before.extend(_bytes_held(cluster, index) for index in range(2))
        export = tfps.export_changes(ours, folder, compact_at=9)
        assert export is not None
        assert not before
        return export.num_rows, serving.Tables(folder)

    num_rows, tables = export()
    assert num_rows == _ROWS
    np.testing.assert_array_equal(tables["items"].rows, np.asarray(table))
    # Few rows, which are copied in memory.
    _fit(ours)
    num_rows, tables = export()
    assert 0 < num_rows <= len(_POOL)
    np.testing.assert_array_equal(tables["items"].rows, np.asarray(table))
    # All but the first rows of each shard.
    changed = np.asarray(table)
    changed[10 : _ROWS // 2] += 1
    changed[_ROWS // 2 + 10 :] += 2
    table.assign(changed)
    num_rows, tables = export()
    assert num_rows == _ROWS - 20
    np.testing.assert_array_equal(tables["items"].rows, changed)
    tfps.ClusterCoordinator(strategy).close()


@pytest.mark.parametrize("by_ps", [True, False])
def test_an_increment_has_rows_that_were_copied_on_the_disk(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    by_ps: bool,
) -> None:
    strategy = _strategy(cluster, tmp_path / "rows")
    with strategy.scope():
        model = _model("path", _storage(tmp_path / "rows"))
    if not by_ps:
        monkeypatch.setattr(shared_folder, "is_seen_by", lambda *_: False)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved", full_every=3
    )
    manager.save()
    manager.sync()
    copied = []
    copy = on_disk.copy

    def copy_and_note(variable: Any, place: Any) -> tf.Tensor:
        copied.append(variable.path)
        return copy(variable, place)

    _fit(model)
    with monkeypatch.context() as patched:
        patched.setattr(change_files, "_MOST_BYTES", 0)
        patched.setattr(change_files, "SLICE_BYTES", 100_000)
        patched.setattr(on_disk, "copy", copy_and_note)
        manager.save()
        manager.sync()
    # The table and Adam's two slots, on both parameter servers.
    assert len(copied) == 6
    truth = _contents(model)
    _fit(model)
    manager.restore_latest()
    _assert_same(model, truth)
    _wait_for_limits(model)
    tfps.ClusterCoordinator(strategy).close()


@pytest.mark.parametrize(
    ("kind", "lost"), [("path", (1,)), ("option", (0, 1))], ids=str
)
def test_a_lost_ps_loses_nothing_that_a_checkpoint_has(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    kind: str,
    lost: tuple[int, ...],
) -> None:
    strategy = _strategy(cluster, tmp_path / "rows")
    with strategy.scope():
        model = _model(kind, _storage(tmp_path / "rows"))
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

    truth = _contents(model)
    kill()
    # Waits until the rows are back.
    _assert_same(model, truth)
    # Rows can be read a moment before it is told.
    seen.wait_for(events.ParameterServerRecovered, len(lost))
    assert sorted(set(seen.recovered())) == list(lost)
    _wait_for_limits(model)
    # And in the middle of a step, which begins with the rows of the checkpoint.
    expected = _fit(model)
    tfps.Checkpoint(model=model).restore(manager.latest_checkpoint)
    found = _fit(model, epochs=2, callbacks=[At({10: kill})])
    assert found[-1] < expected[0]
    _wait_for_limits(model)
    untouched = np.setdiff1d(np.arange(_ROWS), _POOL)
    np.testing.assert_array_equal(
        np.asarray(_table(model))[untouched], truth[0][untouched]
    )
    # The files of a process that was killed are gone with it.
    assert not list((tmp_path / "rows").iterdir())
    tfps.ClusterCoordinator(strategy).close()


@pytest.mark.parametrize("shards", [1, 2])
def test_the_program_assigns_whole_tables(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, shards: int
) -> None:
    strategy = _strategy(
        cluster,
        tmp_path,
        variable_partitioner=tfps.partitioners.FixedShardsPartitioner(shards),
    )
    with strategy.scope():
        layer = keras.layers.Embedding(_ROWS, _WIDTH, name="items")
        other = keras.layers.Embedding(_ROWS, _WIDTH, name="others")
        layer.build(())
        other.build(())
    table = layer.embeddings
    values = _RANDOM.normal(size=(_ROWS, _WIDTH)).astype("float32")
    share = _MEMORY_ROWS / _ROWS

    def check(expected: np.ndarray) -> None:
        np.testing.assert_array_equal(layer.get_weights()[0], expected)
        shared_tiered.wait_for_limits(table, share)

    layer.set_weights([values])
    check(values)
    table.assign(-values)
    check(-values)
    table.assign(tf.constant(values))
    check(values)
    table.assign(other.embeddings)
    check(np.asarray(other.embeddings))
    table.value.assign(values)
    check(values)
    table.value.assign(other.embeddings.value)
    check(np.asarray(other.embeddings))
    for method in ("assign_add", "assign_sub"):
        with pytest.raises(errors.UnsupportedError, match="'items/embeddings'"):
            getattr(table, method)(values)
    check(np.asarray(other.embeddings))

    @tf.function
    def change() -> None:
        table.assign(tf.ones(table.shape))

    with pytest.raises(errors.UnsupportedError, match="single rows only"):
        change()
    check(np.asarray(other.embeddings))
    tfps.ClusterCoordinator(strategy).close()


def test_explain_tells_how_much_is_in_memory(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = _strategy(cluster, tmp_path)
    with strategy.scope():
        model = _model("path", _storage(tmp_path))
    _fit(model)
    explanation = strategy.explain(model, print_fn=None)
    tables = [each for each in explanation.held if each.disk_bytes]
    # Of each shard; parameter servers update slots by themselves.
    assert len(tables) == 2
    for each in tables:
        assert each.num_bytes == _ROWS // 2 * _WIDTH * 4
        assert each.memory_bytes == int(_MEMORY_ROWS / _ROWS * each.num_bytes)
    assert "at most" in str(explanation)
    tfps.ClusterCoordinator(strategy).close()


def test_what_cannot_be_on_disk_is_refused(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    storage = tfps.TieredStorage(2, str(tmp_path))
    strategy = _strategy(
        cluster,
        tmp_path,
        variable_partitioner=None,
        table_storage={"dense/kernel": storage, "alone": storage},
    )
    with strategy.scope():
        dense = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, name="dense")]
        )
        dense.compile("adam", "mse")
    with pytest.raises(errors.UnsupportedError, match="a dense gradient"):
        dense.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
    with strategy.scope():
        with pytest.raises(errors.VariableCreationError, match="no rows"):
            keras.Variable(1.0, name="alone")
        bounded = keras.Sequential(
            [
                keras.Input((4,), dtype="int64"),
                keras.layers.Embedding(
                    100,
                    4,
                    embeddings_constraint=keras.constraints.MaxNorm(axis=0),
                    name="alone",
                ),
                keras.layers.Flatten(),
                keras.layers.Dense(1, name="last"),
            ]
        )
        bounded.compile("adam", "mse")
    with pytest.raises(errors.UnsupportedError, match="whole columns"):
        bounded.fit(np.ones((8, 4), "int64"), np.ones((8, 1)), verbose=0)
    tfps.ClusterCoordinator(strategy).close()


def test_a_key_without_a_variable_is_told(
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = "item/embedding$"
    strategy = _strategy(
        cluster, tmp_path, table_storage={key: _storage(tmp_path)}
    )
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int64"),
                keras.layers.Embedding(100, 4, name="items"),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    with caplog.at_level(logging.WARNING, "tfps_plugin.variables"):
        for _ in range(2):
            model.fit(np.ones((8, 4), "int64"), np.ones((8, 1)), verbose=0)
    (record,) = (each for each in caplog.records if key in each.getMessage())
    assert "items/embeddings'" in record.getMessage()
    tfps.ClusterCoordinator(strategy).close()


# With another cluster, the job of the one that others share is over.
@pytest.mark.parametrize("has_pool", [False, True], ids=["malloc", "pool"])
def test_memory_comes_from_malloc_though_tensorflow_has_a_pool(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, has_pool: bool
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    if has_pool:
        monkeypatch.setenv(tensor_memory.WITHOUT_POOL, "0")
    else:
        monkeypatch.delenv(tensor_memory.WITHOUT_POOL, raising=False)
    with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
        strategy = _strategy(
            cluster,
            tmp_path,
            variable_partitioner=None,
            table_storage={"items": _storage(tmp_path)},
        )
        layers = [
            keras.layers.Embedding(150_000, _WIDTH, "ones", name=f"items_{n}")
            for n in range(5)
        ]
        refusal: Any = contextlib.nullcontext()
        if has_pool:
            refusal = pytest.raises(
                errors.VariableCreationError, match="TF_ONEDNN_USE_SYSTEM"
            )
        with strategy.scope(), refusal:
            for layer in layers:
                layer.build()
                (shard,) = layer.embeddings.value.shards
                assert on_disk.counts(shard, shard.on_disk)[0] > 30e6
        tfps.ClusterCoordinator(strategy).close()

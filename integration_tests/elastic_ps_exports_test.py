"""Tests of exports while parameter servers come and go."""

import faulthandler
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from shared_ps_changes import PsChanges

import tfps_plugin as tfps
from tfps_plugin import serving
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.training.exports.exporter import Exporter
from tfps_plugin.variables.chief.pending_writes import PendingWrites
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable

# A change of the parameter servers takes long: steps are traced again.
pytestmark = [
    pytest.mark.cluster(num_workers=2, num_ps=3),
    pytest.mark.sample(cases=1, group="elastic_ps_exports"),
]

_SECONDS = 120.0
_STACKS_SECONDS = 240.0
# How long a parameter server that should stay is watched.
_STAY_SECONDS = 2.0
_PAUSE_SECONDS = 0.02
_BATCH = 8
_IDS = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 400)


@pytest.fixture(autouse=True)
def _stacks() -> Iterator[None]:
    """Prints the stacks of all threads, should a test hang."""
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(_STACKS_SECONDS, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets small tables move as large ones do."""
    monkeypatch.setattr(row_marks, "SMALLEST_TABLE_BYTES", 0)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(3),
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        items = tfps.layers.DynamicEmbedding(
            4, "zeros", capacity=3 * len(_IDS), name="items"
        )
        users = keras.layers.Embedding(len(_IDS), 4, "zeros", name="users")
        sums = items(ids) + users(keras.ops.mod(ids, len(_IDS)))
        model = keras.Model(ids, sums)
        # Each example adds one to the rows of its ids.
        model.compile(
            keras.optimizers.SGD(float(_BATCH)),
            lambda _, rows: -keras.ops.sum(rows, axis=-1),
        )
    return model


class _Thread(threading.Thread):
    """Calls a function, once or until it is told to end."""

    def __init__(self, act: Callable[[], Any], *, repeats: bool) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._repeats = repeats
        self.num_calls = 0

    def run(self) -> None:
        try:
            while True:
                self._act()
                self.num_calls += 1
                if not self._repeats or self._is_over.wait(_PAUSE_SECONDS):
                    return
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        """Waits for its end; raises what the function has raised."""
        self._is_over.set()
        self.join(_SECONDS)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error


class _Changes(PsChanges):
    """Removes and adds a parameter server on a thread, while `fit` trains."""

    def __init__(self, cluster: tfps.LocalCluster) -> None:
        super().__init__(cluster, {}, {})
        self._thread = _Thread(self._change, repeats=False)

    def _change(self) -> None:
        self.remove(1)
        self.add(1)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 5 and not self._thread.ident:
            self._thread.start()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._thread.is_alive():
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        self._thread.end()


def _require_equal(tables: serving.Tables, model: keras.Model) -> None:
    ids, rows = model.get_layer("items").export()
    assert tables["items"].ids.tolist() == sorted(ids)
    np.testing.assert_array_equal(tables["items"].lookup(ids), rows)
    np.testing.assert_array_equal(
        tables["users"].rows,
        keras.ops.convert_to_numpy(model.get_layer("users").embeddings),
    )


@pytest.mark.parametrize("exports", ["by callback", "by thread"])
def test_a_reader_ends_with_all_that_was_trained(
    model: keras.Model,
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    exports: str,
) -> None:
    tfps.export_changes(model, tmp_path)
    tables = serving.Tables(tmp_path)
    follower = _Thread(tables.refresh, repeats=True)
    threads = [follower]
    changes = _Changes(cluster)
    callbacks: list[Any] = [changes]
    if exports == "by thread":
        exporter = _Thread(
            lambda: tfps.export_changes(model, tmp_path), repeats=True
        )
        threads.append(exporter)
    else:
        callbacks.append(tfps.callbacks.ExportChanges(tmp_path, minutes=0))
    for thread in threads:
        thread.start()
    try:
        epochs = model.fit(
            _IDS,
            _IDS,
            batch_size=_BATCH,
            epochs=1000,
            verbose=0,
            callbacks=callbacks,
        ).epoch
    finally:
        for thread in threads:
            thread.end()
    assert changes.num_changes == 2
    tfps.export_changes(model, tmp_path)
    tables.refresh()
    _require_equal(tables, model)
    # The truth: each example adds one.
    np.testing.assert_array_equal(
        tables["items"].lookup(_IDS), np.full((len(_IDS), 4), len(epochs))
    )
    counts = np.bincount(_IDS % len(_IDS), minlength=len(_IDS))
    np.testing.assert_array_equal(
        tables["users"].rows[:, 0], counts * len(epochs)
    )


def test_a_parameter_server_stays_until_an_export_is_written(
    strategy: tfps.ParameterServerStrategy,
    model: keras.Model,
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.random.default_rng(6).normal(size=(len(_IDS), 4))
    model.get_layer("items").import_(_IDS, rows)
    has_taken, has_moved = threading.Event(), threading.Event()
    write, wait = Exporter.write, PendingWrites.wait
    process = cluster.process("ps", 1)

    def late_write(self: Exporter, *arguments: Any) -> Any:
        has_taken.set()
        assert has_moved.wait(_SECONDS)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(_STAY_SECONDS)
        return write(self, *arguments)

    def noted_wait(self: PendingWrites, timeout_seconds: float) -> bool:
        has_moved.set()
        return wait(self, timeout_seconds)

    monkeypatch.setattr(Exporter, "write", late_write)
    monkeypatch.setattr(PendingWrites, "wait", noted_wait)
    exporter = _Thread(
        lambda: tfps.export_changes(model, tmp_path), repeats=False
    )
    exporter.start()
    assert has_taken.wait(_SECONDS)
    changes = PsChanges(cluster, {}, {})
    changes.set_model(model)
    changes.remove(1)
    exporter.end()
    _require_equal(serving.Tables(tmp_path), model)
    changes.add(1)


def test_an_export_begins_again_when_rows_move(
    strategy: tfps.ParameterServerStrategy,
    model: keras.Model,
    cluster: tfps.LocalCluster,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = np.random.default_rng(6).normal(size=(len(_IDS), 4))
    model.get_layer("items").import_(_IDS, rows)
    has_begun, has_moved = threading.Event(), threading.Event()
    finish, wait = RemoteVariable.finish_steps, PendingWrites.wait

    def late_finish(self: RemoteVariable) -> None:
        # It knows the shards of the rows, and not those of the ids yet.
        if threading.current_thread() is exporter:
            has_begun.set()
            assert has_moved.wait(_SECONDS)
        finish(self)

    def noted_wait(self: PendingWrites, timeout_seconds: float) -> bool:
        has_moved.set()
        return wait(self, timeout_seconds)

    monkeypatch.setattr(RemoteVariable, "finish_steps", late_finish)
    monkeypatch.setattr(PendingWrites, "wait", noted_wait)
    exporter = _Thread(
        lambda: tfps.export_changes(model, tmp_path), repeats=False
    )
    exporter.start()
    assert has_begun.wait(_SECONDS)
    changes = PsChanges(cluster, {}, {})
    changes.set_model(model)
    changes.remove(1)
    exporter.end()
    _require_equal(serving.Tables(tmp_path), model)
    changes.add(1)

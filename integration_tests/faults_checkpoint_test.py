"""Tests of processes that die while a checkpoint is written or restored.

The moment is never left to chance: a patched function of the chief kills first.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_training
import tensorflow as tf
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.monitoring import events
from tfps_plugin.recovery.checkpoints import committing
from tfps_plugin.recovery.checkpoints import part_files

pytestmark = pytest.mark.sample(cases=4, group="faults_checkpoint")

_ROWS = 400
_STEPS = 60
_BATCH = 8
_IDS, _TARGETS = shared_training.ids_and_targets(_ROWS, _STEPS * _BATCH)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


class _Training:
    """A model, its first checkpoint, and the events since."""

    def __init__(
        self, cluster: tfps.LocalCluster, folder: pathlib.Path
    ) -> None:
        self.cluster = cluster
        self.strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        self.coordinator = tfps.ClusterCoordinator(self.strategy)
        keras.utils.set_random_seed(1)
        with self.strategy.scope():
            self.model = keras.Sequential(
                [
                    keras.Input((4,), dtype="int32"),
                    keras.layers.Embedding(_ROWS, 8, name="table"),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            self.model.compile(keras.optimizers.Adam(0.01), "mse")
            self.model.optimizer.build(self.model.trainable_variables)
        self.manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=self.model), folder
        )
        self.manager.save()
        self.manager.sync()
        self.seen = Seen(self.coordinator)

    def fit(self, *callbacks: Any) -> Any:
        return self.model.fit(
            _IDS,
            _TARGETS,
            batch_size=_BATCH,
            verbose=0,
            epochs=2,
            callbacks=list(callbacks),
        ).history

    def restart_ps(self, index: int) -> None:
        self.cluster.kill("ps", index)
        self.cluster.start("ps", index)

    def recovered(self) -> list[tuple[int, str]]:
        """Returns the restored ps, and the checkpoint of each."""
        return [
            (event.ps_index, pathlib.Path(event.source).name)
            for event in self.seen.of(events.ParameterServerRecovered)
        ]

    def failed(self) -> list[str]:
        """Returns the checkpoints that could not be written."""
        return [
            pathlib.Path(event.path).name
            for event in self.seen.of(events.CheckpointFailed)
        ]


@pytest.fixture
def training(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> Iterator[_Training]:
    training = _Training(cluster, tmp_path)
    yield training
    training.coordinator.close()
    cluster.wait_until_ready()


class _SaveAt(keras.callbacks.Callback):
    """Takes a checkpoint after a batch of the first epoch."""

    def __init__(self, manager: tfps.CheckpointManager, batch: int) -> None:
        super().__init__()
        self._manager = manager
        self._batch = batch
        self._is_done = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == self._batch and not self._is_done:
            self._is_done = True
            self._manager.save()


def _once(action: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that acts on its first call only, on any thread."""
    lock = threading.Lock()
    is_done = False

    def do() -> None:
        nonlocal is_done
        with lock:
            if not is_done:
                is_done = True
                action()

    return do


def _before(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    action: Callable[[], None],
) -> None:
    """Runs an action before the first call of a function of ours."""
    original, act = getattr(module, name), _once(action)

    def do(*arguments: Any) -> Any:
        act()
        return original(*arguments)

    monkeypatch.setattr(module, name, do)


def test_a_ps_dies_before_it_has_written(
    training: _Training,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _before(monkeypatch, part_files, "_save", lambda: training.restart_ps(1))
    history = training.fit(_SaveAt(training.manager, 20))
    assert training.failed() == ["ckpt-2"]
    assert training.recovered() == [(1, "ckpt-1")]
    shared_training.assert_went_on(training.model, history, 2 * _STEPS)
    assert training.manager.checkpoints == [str(tmp_path / "ckpt-1")]
    assert list(tmp_path.glob(".writing*")) == []
    training.manager.save()
    training.manager.sync()
    assert training.manager.restore_latest() == str(tmp_path / "ckpt-2")


def test_a_ps_dies_when_it_has_written(
    training: _Training,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _before(monkeypatch, committing, "commit", lambda: training.restart_ps(0))
    history = training.fit(_SaveAt(training.manager, 20))
    # Its part was written, and it was restored from that very checkpoint.
    assert training.failed() == []
    assert training.recovered() == [(0, "ckpt-2")]
    shared_training.assert_went_on(training.model, history, 2 * _STEPS)
    assert training.manager.restore_latest() == str(tmp_path / "ckpt-2")
    # It has exactly the steps that were requested before it was taken.
    assert int(training.model.optimizer.iterations) == 21


@pytest.mark.parametrize("second", [0, 1])
def test_a_ps_dies_while_another_or_itself_is_restored(
    training: _Training, monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    saved = shared_training.shards_of(training.model)
    first = training.fit()["loss"]
    shared_training.assert_slots_are_trained(training.model)
    trained = shared_training.shards_of(training.model)
    _before(
        monkeypatch,
        part_files,
        "_restore_there",
        lambda: training.restart_ps(second),
    )
    training.restart_ps(0)
    now = shared_training.shards_of(training.model)
    for before, after, (path, ps, value) in zip(
        saved, trained, now, strict=True
    ):
        expected = before if ps in (0, second) else after
        np.testing.assert_array_equal(value, expected[2], path)
    assert {ps for ps, _ in training.recovered()} == {0, second}
    assert {name for _, name in training.recovered()} == {"ckpt-1"}
    assert int(training.model.optimizer.iterations) == 2 * _STEPS
    history = {"loss": [first[0], *training.fit()["loss"]]}
    shared_training.assert_went_on(training.model, history, 4 * _STEPS)


def test_fit_goes_on_when_a_ps_dies_while_it_is_restored(
    training: _Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    _before(
        monkeypatch,
        part_files,
        "_restore_there",
        lambda: training.restart_ps(1),
    )
    kill = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: (
            training.restart_ps(1) if epoch == 1 else None
        )
    )
    history = training.fit(kill)
    assert training.recovered() == [(1, "ckpt-1")]
    shared_training.assert_went_on(training.model, history, 2 * _STEPS)


def test_a_step_of_the_chief_fails_as_tensorflow_has_it(
    training: _Training,
) -> None:
    def step() -> None:
        training.model.train_on_batch(_IDS[:_BATCH], _TARGETS[:_BATCH])

    step()
    training.restart_ps(1)
    with pytest.raises(tf.errors.OpError):
        step()
    # The next caller notices, and waits until it is restored.
    history = training.fit()
    shared_training.assert_went_on(training.model, history, 2 * _STEPS)
    assert training.recovered() == [(1, "ckpt-1")]
    step()


def test_a_ps_is_lost_before_the_first_step_is_traced(
    training: _Training,
) -> None:
    training.restart_ps(1)
    history = training.fit()
    assert training.recovered() == [(1, "ckpt-1")]
    shared_training.assert_went_on(training.model, history, 2 * _STEPS)


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a separate file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full(
    training: _Training, small_disk: pathlib.Path
) -> None:
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=training.model), small_disk
    )
    manager.save()
    manager.sync()
    expected = shared_training.state_of(training.model)
    files = sorted(small_disk.rglob("*"))
    left = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    filler = small_disk / "filler"
    filler.write_bytes(bytes(left - 8192))
    history = training.fit(_SaveAt(manager, 20))
    with pytest.raises((tf.errors.OpError, OSError)):
        manager.sync()
    assert training.failed() == ["ckpt-2"]
    shared_training.assert_went_on(training.model, history, 2 * _STEPS)
    assert int(training.model.optimizer.iterations) == 2 * _STEPS
    filler.unlink()
    # Nothing of it is left, and the previous checkpoint is unchanged.
    assert sorted(small_disk.rglob("*")) == files
    assert manager.restore_latest() == str(small_disk / "ckpt-1")
    shared_training.assert_state(training.model, expected)
    manager.save()
    manager.sync()
    assert manager.latest_checkpoint == str(small_disk / "ckpt-2")


# It ends like a killed chief: at once, in the middle of a write.
_CHIEF = """
import os
import signal
import sys

import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.recovery.checkpoints import committing

folder, moment = sys.argv[1:]
cluster = tfps.LocalCluster(num_workers=1, num_ps=1)
strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
with strategy.scope():
    table = tf.Variable(tf.ones([100, 8]))
manager = tfps.CheckpointManager(tfps.Checkpoint(table=table), folder)
manager.save()
manager.sync()
table.assign(tf.fill([100, 8], 2.0))
rename = tf.io.gfile.rename


def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def rename_or_die(source, target, overwrite=False):
    if target.endswith(".index"):
        die()
    rename(source, target, overwrite)


if moment == "before it is put together":
    committing.commit = die
else:
    tf.io.gfile.rename = rename_or_die
manager.save()
manager.sync()
"""


@pytest.mark.parametrize(
    "moment", ["before it is put together", "before its index is there"]
)
def test_the_chief_dies_while_it_writes(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: pathlib.Path,
    moment: str,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _CHIEF, str(tmp_path), moment],
        # Nobody is left to remove the files of its cluster there.
        env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("chief"))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert list(tmp_path.glob(".writing*")) != []
    # A program of one process resumes from it.
    table = tf.Variable(tf.zeros([100, 8]))
    manager = tfps.CheckpointManager(tfps.Checkpoint(table=table), tmp_path)
    assert list(tmp_path.glob(".writing*")) == []
    assert manager.restore_latest() == str(tmp_path / "ckpt-1")
    np.testing.assert_array_equal(table.numpy(), np.ones([100, 8]))
    table.assign(tf.fill([100, 8], 3.0))
    manager.save()
    manager.sync()
    table.assign(tf.zeros([100, 8]))
    assert manager.restore_latest() == str(tmp_path / "ckpt-2")
    np.testing.assert_array_equal(table.numpy(), np.full([100, 8], 3.0))

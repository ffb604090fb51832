"""Tests of the time at which `CheckpointManager.save` returns.

Nothing is left to chance: writing is blocked until the test opens a gate.
"""

import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_training
import tensorflow as tf
from shared_training import Load

import tfps_plugin as tfps
from tfps_plugin.recovery.checkpoints import committing
from tfps_plugin.recovery.checkpoints import part_files

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 100
_BATCH = 8
_STEPS = 16
_DEADLINE_SECONDS = 60.0
_random = np.random.default_rng(0)
_IDS = _random.integers(0, _ROWS, (_STEPS * _BATCH, 4)).astype("int32")
_TARGETS = _random.random((_STEPS * _BATCH, 1)).astype("float32")


@pytest.fixture(scope="module")
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, tfps.partitioners.FixedShardsPartitioner(2)
    )
    # Made here, because its threads outlive the first test that uses it.
    coordinator = tfps.ClusterCoordinator(strategy)
    yield strategy
    coordinator.close()


@pytest.fixture(scope="module")
def model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(_ROWS, 8),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile("adam", "mse")
    _fit(model)
    shared_training.assert_slots_are_trained(model)
    return model


def _fit(model: keras.Model, *callbacks: Any) -> None:
    model.fit(
        _IDS,
        _TARGETS,
        batch_size=_BATCH,
        verbose=0,
        callbacks=list(callbacks),
    )


class _Gate:
    """A gate where threads wait until it is opened."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._is_open = threading.Event()

    def pass_through(self) -> None:
        self._reached.set()
        assert self._is_open.wait(_DEADLINE_SECONDS)

    def wait_until_reached(self) -> None:
        assert self._reached.wait(_DEADLINE_SECONDS)

    def open(self) -> None:
        self._is_open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Gate]:
    """Yields a gate before the first row is written."""
    gate = _Gate()
    save = part_files._save

    def save_later(*arguments: Any) -> None:
        gate.pass_through()
        save(*arguments)

    monkeypatch.setattr(part_files, "_save", save_later)
    yield gate
    gate.open()


def _manager(
    model: keras.Model, folder: pathlib.Path, **options: Any
) -> tfps.CheckpointManager:
    return tfps.CheckpointManager(
        tfps.Checkpoint(model=model), folder, **options
    )


def test_save_returns_before_files_are_written_and_steps_run_meanwhile(
    model: keras.Model, tmp_path: pathlib.Path, gate: _Gate
) -> None:
    manager = _manager(model, tmp_path)
    expected = shared_training.state_of(model)
    before = int(model.optimizer.iterations)
    path = manager.save()
    gate.wait_until_reached()
    _fit(model)
    assert int(model.optimizer.iterations) == before + _STEPS
    assert manager.checkpoints == []
    assert not list(tmp_path.glob("ckpt*"))
    gate.open()
    manager.sync()
    assert manager.checkpoints == [path]
    # It has the state of the time of the call, without those steps.
    assert manager.restore_latest() == path
    shared_training.assert_state(model, expected)


def test_save_inside_fit_has_all_steps_so_far_and_fit_goes_on(
    model: keras.Model, tmp_path: pathlib.Path, gate: _Gate
) -> None:
    manager = _manager(model, tmp_path)
    before = int(model.optimizer.iterations)
    batches_after: list[int] = []

    def at_batch_end(batch: int, logs: Any) -> None:
        if batch == 5:
            manager.save()
            gate.wait_until_reached()
        elif batch > 5:
            batches_after.append(batch)

    _fit(model, keras.callbacks.LambdaCallback(on_train_batch_end=at_batch_end))
    assert batches_after == list(range(6, _STEPS))
    assert int(model.optimizer.iterations) == before + _STEPS
    assert manager.checkpoints == []
    gate.open()
    manager.sync()
    manager.restore_latest()
    assert int(model.optimizer.iterations) == before + 6


def test_another_one_waits_for_the_one_before(
    model: keras.Model, tmp_path: pathlib.Path, gate: _Gate
) -> None:
    manager = _manager(model, tmp_path, write_timeout_seconds=0.3)
    path = manager.save()
    gate.wait_until_reached()
    for call in (manager.save, manager.sync, manager.restore_latest):
        with pytest.raises(TimeoutError, match="write_timeout_seconds"):
            call()
    # The writing was not given up.
    gate.open()
    _wait_until_written(manager)
    assert manager.checkpoints == [path]
    assert manager.save() == str(tmp_path / "ckpt-2")
    _wait_until_written(manager)


def _wait_until_written(manager: tfps.CheckpointManager) -> None:
    """Waits like `sync`, with this test's deadline."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        try:
            return manager.sync()
        except TimeoutError:
            assert time.monotonic() < deadline


def test_nothing_goes_on_where_nothing_is_asynchronous(
    model: keras.Model, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = _manager(model, tmp_path, asynchronous=False)
    threads: list[str] = []
    commit = committing.commit

    def note_thread(*arguments: Any) -> None:
        threads.append(threading.current_thread().name)
        commit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(committing, "commit", note_thread)
        path = manager.save()
    assert threads == [threading.current_thread().name]
    assert pathlib.Path(path + ".index").exists()
    assert manager.checkpoints == [path]

    def full(*arguments: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(committing, "commit", full)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="disk full"):
            manager.save()
    assert manager.checkpoints == [path]
    assert isinstance(manager.last_error, tf.errors.ResourceExhaustedError)


def test_what_is_in_flight_in_a_custom_loop_makes_no_value_that_never_was(
    strategy: tfps.ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        # Two shards each; large enough that taking a value takes time.
        whole = [
            tf.Variable(tf.zeros([200_000])),
            tf.Variable(tf.zeros([20_000, 16])),
        ]
        rows = tf.Variable(tf.zeros([1000, 200]))
    ids = tf.range(1000)

    @tf.function
    def add() -> None:
        for variable in whole:
            variable.assign_add(tf.ones(variable.shape))
        rows.scatter_add(tf.IndexedSlices(tf.ones([1000, 200]), ids))

    manager = tfps.CheckpointManager(
        tfps.Checkpoint(whole=whole, rows=rows), tmp_path
    )
    load = Load(coordinator, add)
    load.start()
    try:
        done_before = load.wait_for(20)
        # Nobody has waited for the steps in flight.
        path = manager.save()
        manager.sync()
        load.wait_for(load.wait_for(0) + 1)
    finally:
        done = load.end()
    assert manager.restore_latest() == path
    for variable in whole:
        for shard in variable.variables:
            (number,) = np.unique(shard.numpy())
            assert number == int(number)
            assert done_before <= number < done
    # A row that is being changed may mix two steps: a custom loop that cares
    # has to join first.
    for shard in rows.variables:
        numbers = np.unique(shard.numpy())
        np.testing.assert_array_equal(numbers, numbers.astype(int))
        assert done_before <= numbers.min() <= numbers.max() <= done

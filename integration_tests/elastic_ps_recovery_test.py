"""Tests of checkpoints and losses before and after parameter servers change."""

import pathlib
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_rows
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.resharding import moved_rows

_ROWS = 4 * 480
_STEPS = 400
_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets small tables move as large ones do."""
    monkeypatch.setattr(row_marks, "SMALLEST_TABLE_BYTES", 0)


@pytest.fixture
def job(
    request: pytest.FixtureRequest,
) -> Callable[..., tuple[tfps.LocalCluster, Any, keras.Model]]:
    """Returns a function that starts a cluster, and makes a model on it."""

    def start(
        **options: Any,
    ) -> tuple[tfps.LocalCluster, tfps.ClusterCoordinator, keras.Model]:
        cluster = tfps.LocalCluster(num_workers=2, num_ps=2)
        request.addfinalizer(cluster.stop)
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            **options,
        )
        coordinator = tfps.ClusterCoordinator(strategy)
        request.addfinalizer(coordinator.close)
        model, _ = shared_rows.model(strategy, _ROWS)
        return cluster, coordinator, model

    return start


def _fit(model: keras.Model, callback: Any = None, steps: int = _STEPS) -> None:
    data = tfps.DatasetCreator(
        lambda context: shared_rows.numbers(0, _ROWS).repeat()
    )
    model.fit(
        data,
        steps_per_epoch=steps,
        verbose=0,
        callbacks=[] if callback is None else [callback],
    )


class _At(keras.callbacks.Callback):
    """Calls functions after some batches."""

    def __init__(self, calls: dict[int, Callable[[], Any]]) -> None:
        super().__init__()
        self._calls = calls

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch in self._calls:
            self._calls.pop(batch)()


@pytest.mark.parametrize("saves_again", [False, True])
@pytest.mark.parametrize("full_every", [1, 4])
def test_a_loss_after_a_change_is_recovered_from_a_checkpoint(
    job: Callable[..., Any],
    tmp_path: pathlib.Path,
    saves_again: bool,
    full_every: int,
) -> None:
    cluster, coordinator, model = job()
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path, full_every=full_every
    )
    recovered = threading.Event()
    seen: list[float] = []

    def note(event: tfps.events.Event) -> None:
        if isinstance(event, tfps.events.ParameterServerRecovered):
            recovered.set()

    coordinator.events.subscribe(note)

    def save() -> None:
        manager.save()
        seen.append(shared_rows.counts(model).sum())

    def change() -> None:
        coordinator.add_ps(cluster.add_ps())
        coordinator.remove_ps(0)
        if saves_again:
            save()

    def lose() -> None:
        manager.sync()
        cluster.kill("ps", 2)
        cluster.start("ps", 2, wait=True)

    _fit(model, _At({60: save, 120: change, 200: lose}))
    assert recovered.wait(_SECONDS)
    assert coordinator.ps_indices == (1, 2)
    # Rows on the lost parameter server went back to the checkpoint.
    counts = shared_rows.counts(model)
    # Steps that were in flight may count twice.
    most = _STEPS + coordinator.counters.value("steps_again")
    assert seen[-1] < counts.sum() <= most * shared_rows.BATCH
    assert _STEPS <= int(model.optimizer.iterations) <= most
    # A new model reads the last checkpoint into other shards.
    save()
    manager.sync()
    expected = shared_rows.counts(model)
    model.layers[0].embeddings.assign(np.zeros((_ROWS, 1), "float32"))
    manager.restore_latest()
    np.testing.assert_array_equal(shared_rows.counts(model), expected)


@pytest.mark.parametrize("victim", [1, 2])
def test_a_loss_while_rows_are_copied_undoes_the_change(
    job: Callable[..., Any],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: int,
) -> None:
    cluster, coordinator, model = job()
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    copy = moved_rows.MovedRows.copy
    is_lost = threading.Event()

    def copy_and_lose(rows: moved_rows.MovedRows) -> None:
        if not is_lost.is_set():
            is_lost.set()
            cluster.kill("ps", victim)
        copy(rows)

    monkeypatch.setattr(moved_rows.MovedRows, "copy", copy_and_lose)

    def change() -> None:
        manager.save()
        manager.sync()
        with pytest.raises(Exception) as raised:  # noqa: PT011
            coordinator.add_ps(cluster.add_ps())
        assert not isinstance(raised.value, AssertionError)
        if victim < 2:
            cluster.start("ps", victim, wait=True)

    _fit(model, _At({60: change}))
    assert coordinator.ps_indices == (0, 1)
    counts = shared_rows.counts(model)
    if victim == 2:
        assert counts.sum() == _STEPS * shared_rows.BATCH
        # Its index is free for the same address.
        cluster.start("ps", 2, wait=True)
        address = cluster.cluster_spec.ps_addresses[2]
        assert coordinator.add_ps(address) == 2
        _fit(model, steps=20)
        assert shared_rows.counts(model).sum() == (
            (_STEPS + 20) * shared_rows.BATCH
        )


def test_standby_copies_follow(job: Callable[..., Any]) -> None:
    cluster, coordinator, model = job(
        recovery=tfps.RecoveryOptions(replicate="ps", replicate_every_steps=10)
    )
    recovered = threading.Event()

    def note(event: tfps.events.Event) -> None:
        if isinstance(event, tfps.events.ParameterServerRecovered):
            recovered.set()

    coordinator.events.subscribe(note)

    def change() -> None:
        coordinator.add_ps(cluster.add_ps())
        coordinator.remove_ps(0)

    def lose() -> None:
        cluster.kill("ps", 2)
        cluster.start("ps", 2, wait=True)

    _fit(model, _At({60: change, 300: lose}))
    assert recovered.wait(_SECONDS)
    most = _STEPS + coordinator.counters.value("steps_again")
    assert _STEPS <= int(model.optimizer.iterations) <= most
    with pytest.raises(
        tfps.errors.ClusterConfigurationError,
        match=r"at least two.*Add another",
    ):
        coordinator.remove_ps(1)


def test_what_cannot_be_is_refused(job: Callable[..., Any]) -> None:
    cluster, coordinator, model = job()
    _fit(model, steps=20)
    with pytest.raises(ValueError, match="Take one of coordinator"):
        coordinator.remove_ps(5)
    with pytest.raises(
        tfps.errors.ClusterConfigurationError, match="belongs to the cluster"
    ):
        coordinator.add_ps(cluster.cluster_spec.ps_addresses[0])
    with pytest.raises(tfps.errors.ClusterConfigurationError):
        coordinator.add_ps(cluster.cluster_spec.worker_addresses[0])
    with pytest.raises(tfps.errors.TaskUnreachableError):
        coordinator.add_ps("127.0.0.1:9", timeout_seconds=0.0)
    strategy = coordinator.strategy
    table = model.layers[0].embeddings.value

    @tf.function
    def read() -> Any:
        return table.read_value()

    concrete = read.get_concrete_function()
    before = concrete().numpy()
    coordinator.remove_ps(1)
    with pytest.raises(tfps.errors.UnsupportedError, match="traced since"):
        concrete()
    np.testing.assert_array_equal(read().numpy(), before)
    with pytest.raises(ValueError, match="last parameter server"):
        coordinator.remove_ps(0)
    assert strategy.ps_devices == ("/job:ps/replica:0/task:0/device:CPU:0",)
    assert {shard.device for shard in table.shards} == {*strategy.ps_devices}
    _fit(model, steps=20)
    explanation = strategy.explain(model, print_fn=None)
    assert "/job:ps/replica:0/task:1" not in str(explanation)


def test_scheduled_synchronous_steps_are_traced_again(
    job: Callable[..., Any],
) -> None:
    """Also if none of the variables of a step has moved."""
    cluster, coordinator, model = job(consistency=tfps.Sync())
    strategy = coordinator.strategy
    batches = iter(
        coordinator.create_per_worker_dataset(
            lambda context: shared_rows.numbers(0, _ROWS).repeat()
        )
    )

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        def on_batch(batch: Any) -> tf.Tensor:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model.loss(y, model(x, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return loss

        return strategy.run(on_batch, args=(next(iterator),))

    def train() -> None:
        for _ in range(10):
            coordinator.schedule(step, args=(batches,))
        coordinator.join()

    train()
    coordinator.add_ps(cluster.add_ps())
    # A later parameter server has nothing, and is waited for by each step.
    coordinator.add_ps(cluster.add_ps())
    train()
    coordinator.remove_ps(3)
    train()
    coordinator.remove_ps(2)
    train()
    assert int(model.optimizer.iterations) == 40


def test_an_error_of_a_function_is_raised_in_place_of_a_change(
    job: Callable[..., Any],
) -> None:
    _, coordinator, _ = job()

    def fail() -> None:
        raise ValueError("of the program")

    has_ended = threading.Event()
    coordinator.schedule(fail).on_ended(has_ended.set)
    assert has_ended.wait(_SECONDS)
    with pytest.raises(ValueError, match="of the program"):
        coordinator.remove_ps(1)
    assert coordinator.ps_indices == (0, 1)
    coordinator.remove_ps(1)
    assert coordinator.ps_indices == (0,)

"""Tests of parameter servers that die, and are restored from a checkpoint."""

import pathlib
import signal
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_training
import tensorflow as tf
from shared_losses import LostPs
from shared_losses import StoppedPs
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.monitoring import events

# Each test loses or delays tasks, and takes long.
pytestmark = pytest.mark.sample(cases=4, group="faults_ps")

_ROWS = 400
_STEPS = 96
_BATCH = 8
_IDS, _TARGETS = shared_training.ids_and_targets(_ROWS, _STEPS * _BATCH)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


Make = Callable[..., tfps.ParameterServerStrategy]


def _model(strategy: tfps.ParameterServerStrategy) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(_ROWS, 8, name="table"),
                keras.layers.Flatten(),
                keras.layers.Dense(16, "relu"),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def _fit(model: keras.Model, *callbacks: Any, **options: Any) -> Any:
    return model.fit(
        _IDS,
        _TARGETS,
        batch_size=_BATCH,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    ).history


def _seen(strategy: tfps.ParameterServerStrategy) -> Seen:
    return Seen(tfps.ClusterCoordinator(strategy))


Saved = Callable[..., tfps.CheckpointManager]


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> Saved:
    """Returns a maker of managers that have saved once; keeps them alive."""
    made = []

    def saved(model: keras.Model, **options: Any) -> tfps.CheckpointManager:
        manager = tfps.CheckpointManager(
            tfps.Checkpoint(model=model), tmp_path, **options
        )
        made.append(manager)
        manager.save()
        manager.sync()
        return manager

    return saved


def _restart(cluster: tfps.LocalCluster, *indices: int) -> None:
    for index in indices:
        cluster.kill("ps", index)
    for index in indices:
        cluster.start("ps", index)


def _assert_few_twice(
    model: keras.Model,
    strategy: tfps.ParameterServerStrategy,
    num_epochs: int,
    num_losses: int = 1,
) -> None:
    shared_training.assert_few_steps_twice(
        model,
        tfps.ClusterCoordinator(strategy),
        num_epochs * _STEPS,
        num_losses,
    )


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)], ids=str)
def test_fit_goes_on_after_ps_are_lost(
    cluster: tfps.LocalCluster,
    make: Make,
    saved: Saved,
    tmp_path: pathlib.Path,
    lost: tuple[int, ...],
) -> None:
    strategy = make()
    model = _model(strategy)
    seen = _seen(strategy)
    traces: list[int] = []
    traced_before: list[int] = []

    def kill() -> None:
        traced_before.append(len(traces))
        _restart(cluster, *lost)

    train_step = model.train_step

    def traced_step(data: Any) -> Any:
        traces.append(1)
        return train_step(data)

    model.train_step = traced_step
    manager = saved(model)
    history = _fit(
        model,
        # Kill it in the second epoch: functions are traced in the first anyway.
        At({_STEPS + 20: kill}),
        epochs=3,
    )
    assert sorted(set(seen.recovered())) == list(lost)
    for event in seen.of(events.ParameterServerRecovered):
        assert event.source == str(tmp_path / "ckpt-1")
    shared_training.assert_went_on(model, history, 3 * _STEPS)
    _assert_few_twice(model, strategy, 3, len(lost))
    assert traced_before[0] > 0
    assert len(traces) == traced_before[0], "nothing is traced again"
    # The same model can be saved and read as before.
    manager.save()
    manager.sync()
    assert manager.restore_latest() == str(tmp_path / "ckpt-2")


def test_rounds_of_local_steps_go_on_after_a_ps_is_lost(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    local_steps = 4
    strategy = make(
        consistency=tfps.Async(local_steps=local_steps),
        scheduling=tfps.SchedulingOptions(
            max_closures_in_flight_per_worker=1, steps_per_closure=local_steps
        ),
    )
    model = _model(strategy)
    seen = _seen(strategy)
    saved(model)
    history = _fit(
        model, At({_STEPS + 20: lambda: _restart(cluster, 1)}), epochs=3
    )
    assert seen.recovered() == [1]
    counters = tfps.ClusterCoordinator(strategy).counters
    assert counters.value("steps_done") == 3 * _STEPS
    num_rounds = 3 * _STEPS // local_steps
    shared_training.assert_went_on(model, history, num_rounds)
    # The first batch of an epoch may be a round of its own, so that the last
    # round is shorter, too. A loss interrupts one call of each worker.
    most = num_rounds + 3
    twice = int(model.optimizer.iterations) - most
    assert twice <= 2, (twice, counters.snapshot())


def test_the_same_ps_twice(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    strategy = make()
    model = _model(strategy)
    seen = _seen(strategy)
    saved(model)
    restart = lambda: _restart(cluster, 0)  # noqa: E731
    history = _fit(model, At({10: restart, 70: restart}), epochs=2)
    assert seen.recovered() == [0, 0]
    shared_training.assert_went_on(model, history, 2 * _STEPS)
    _assert_few_twice(model, strategy, 2, num_losses=2)


def test_a_ps_that_comes_back_at_another_address(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    strategy = make()
    model = _model(strategy)
    seen = _seen(strategy)
    before = cluster.cluster_spec.parameter_servers[1].address
    saved(model)

    def move() -> None:
        cluster.kill("ps", 1)
        cluster.start("ps", 1, new_address=True)

    history = _fit(model, At({10: move}), epochs=2)
    assert seen.recovered() == [1]
    assert cluster.cluster_spec.parameter_servers[1].address != before
    shared_training.assert_went_on(model, history, 2 * _STEPS)
    # The next strategy that connects finds the same cluster.
    session = strategy.session
    assert make().session is session


def test_a_ps_that_hangs_is_restored_when_it_goes_on(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    strategy = make()
    model = _model(strategy)
    process = cluster.process("ps", 1)
    seen = _seen(strategy)

    def go_on(event: Any) -> None:
        if isinstance(event, events.WaitingForParameterServer):
            process.send_signal(signal.SIGCONT)

    seen.on_event = go_on
    saved(model)
    hang = At({10: lambda: process.send_signal(signal.SIGSTOP)})
    try:
        history = _fit(model, hang, epochs=2)
    finally:
        process.send_signal(signal.SIGCONT)
    assert seen.recovered() == [1]
    shared_training.assert_went_on(model, history, 2 * _STEPS)
    _assert_few_twice(model, strategy, 2)


def test_what_survived_is_kept_and_what_was_lost_is_the_checkpoints(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    strategy = make()
    model = _model(strategy)
    _fit(model)
    saved(model)
    shared_training.assert_slots_are_trained(model)
    kept = shared_training.shards_of(model)
    _fit(model)
    trained = shared_training.shards_of(model)
    iterations = int(model.optimizer.iterations)
    cluster.kill("ps", 1)
    cluster.start("ps", 1, wait=True)
    # The chief's own read notices, and waits.
    now = shared_training.shards_of(model)
    for before, after, (path, index, value) in zip(
        kept, trained, now, strict=True
    ):
        expected = before if index == 1 else after
        np.testing.assert_array_equal(value, expected[2], path)
        assert not np.array_equal(before[2], after[2]), path
    assert {index for _, index, _ in now} == {0, 1}
    # Workers know the number of steps better than the checkpoint.
    assert int(model.optimizer.iterations) == iterations == 2 * _STEPS


def test_what_was_lost_comes_back_from_an_increment(
    cluster: tfps.LocalCluster,
    make: Make,
    saved: Saved,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tfps_plugin.recovery.incremental.row_marks.SMALLEST_TABLE_BYTES", 1000
    )
    strategy = make()
    model = _model(strategy)
    manager = saved(model, full_every=9)
    _fit(model)
    manager.save()
    manager.sync()
    shared_training.assert_slots_are_trained(model)
    kept = shared_training.shards_of(model)
    _fit(model)
    trained = shared_training.shards_of(model)
    seen = _seen(strategy)
    cluster.kill("ps", 1)
    cluster.start("ps", 1, wait=True)
    now = shared_training.shards_of(model)
    (event,) = seen.of(events.ParameterServerRecovered)
    assert event.source == str(tmp_path / "ckpt-1.increments" / "ckpt-2")
    for before, after, (path, index, value) in zip(
        kept, trained, now, strict=True
    ):
        expected = before if index == 1 else after
        np.testing.assert_array_equal(value, expected[2], path)
    # The next checkpoint has the whole table, because the record of changed
    # rows was lost.
    newest = manager.save()
    manager.sync()
    assert ".increments" in newest
    shapes = tf.train.load_checkpoint(newest).get_variable_to_shape_map()
    assert [_ROWS, 8] in shapes.values()
    expected_state = shared_training.state_of(model)
    _fit(model)
    assert manager.restore_latest() == newest
    shared_training.assert_state(model, expected_state)


def test_everything_is_set_back_where_it_is_to_be_consistent(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    strategy = make(recovery=tfps.RecoveryOptions(restore="consistent"))
    model = _model(strategy)
    _fit(model)
    saved(model)
    shared_training.assert_slots_are_trained(model)
    kept = shared_training.state_of(model)
    _fit(model)
    cluster.kill("ps", 1)
    cluster.start("ps", 1, wait=True)
    # Reads before the loss is noticed return earlier values.
    shared_training.state_of(model)
    shared_training.assert_state(model, kept)
    assert int(model.optimizer.iterations) == _STEPS


@pytest.mark.parametrize("loss", [LostPs, StoppedPs])
def test_a_custom_loop_goes_on(
    cluster: tfps.LocalCluster,
    make: Make,
    tmp_path: pathlib.Path,
    loss: type[LostPs],
) -> None:
    strategy = make(num_shards=1)
    coordinator = tfps.ClusterCoordinator(strategy, patience_seconds=2.0)
    seen = Seen(coordinator)
    with strategy.scope():
        variables = [tf.Variable(tf.zeros([4])) for _ in range(2)]
    assert len({v.device for v in variables}) == 2
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(variables=variables), tmp_path
    )
    how = loss(cluster, seen, 0)
    traces: list[int] = []

    @tf.function
    def add() -> None:
        traces.append(1)
        for variable in variables:
            variable.assign_add(tf.ones([4]))

    for number in range(200):
        if number == 20:
            coordinator.join()
            manager.save()
            manager.sync()
        if number == 50:
            coordinator.join()
            before = [v.numpy()[0] for v in variables]
            assert before == [50, 50]
            traced_before = len(traces)
            how.happen()
        coordinator.schedule(add)
    try:
        coordinator.join()
    finally:
        how.end()
    (event,) = seen.of(events.ParameterServerRecovered)
    assert (event.ps_index, event.source) == (0, str(tmp_path / "ckpt-1"))
    lost, kept = (
        v.numpy()[0]
        for v in sorted(variables, key=lambda v: "task:0" not in v.device)
    )
    # The checkpoint has 20, and 150 closures ran after that.
    assert 20 + 150 <= lost < 50 + 150
    # Closures that failed on one ps may have been applied on the other.
    assert kept >= 200
    assert len(traces) == traced_before, "nothing is traced again"


def test_without_a_checkpoint_the_loss_is_the_users(
    cluster: tfps.LocalCluster, make: Make
) -> None:
    strategy = make()
    model = _model(strategy)
    with pytest.raises(errors.ParameterServerLostError):
        _fit(model, At({10: lambda: _restart(cluster, 1)}), epochs=2)
    cluster.wait_until_ready()


def test_a_read_that_fails_leaves_no_error_behind(
    cluster: tfps.LocalCluster, make: Make
) -> None:
    with make().scope():
        variable = tf.Variable(tf.zeros([4]))
    lost = int(variable.device.split("/task:")[1].split("/")[0])
    cluster.kill("ps", lost)
    executor = tensorflow_execution.new_synchronous_executor()
    try:
        with tensorflow_execution.executor_scope(executor):
            # TensorFlow reports a failed call to the thread's next ones, too.
            with pytest.raises(errors.ParameterServerLostError):
                variable.numpy()
            executor.wait()
    finally:
        cluster.start("ps", lost)
        cluster.wait_until_ready()


def test_what_no_checkpoint_has_is_named(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    strategy = make(num_shards=1)
    model = _model(strategy)
    with strategy.scope():
        forgotten = tf.Variable(tf.zeros([4]), name="forgotten")
    lost = int(forgotten.device.split("/task:")[1].split("/")[0])
    saved(model)
    with pytest.raises(errors.ParameterServerLostError, match="forgotten"):
        _fit(model, At({10: lambda: _restart(cluster, lost)}), epochs=2)
    cluster.wait_until_ready()


def test_tensorflows_behaviour_on_request(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    strategy = make(recovery=tfps.RecoveryOptions(in_place=False))
    model = _model(strategy)
    saved(model)
    with pytest.raises(errors.ParameterServerLostError):
        _fit(model, At({10: lambda: _restart(cluster, 1)}), epochs=2)
    cluster.wait_until_ready()


def test_a_ps_that_stays_away_is_given_up(
    cluster: tfps.LocalCluster, make: Make, saved: Saved
) -> None:
    strategy = make(recovery=tfps.RecoveryOptions(timeout_seconds=3.0))
    model = _model(strategy)
    saved(model)
    kill = At({10: lambda: cluster.kill("ps", 1)})
    with pytest.raises(errors.ParameterServerLostError, match="3 s"):
        _fit(model, kill, epochs=2)
    cluster.start("ps", 1, wait=True)

"""Parameter servers die, and come back with what a checkpoint has."""

import pathlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events

_ROWS = 400
_STEPS = 96
_BATCH = 8
# A lane knows of its own steps at once, of those of others with its next call:
# three other lanes, each with a call of up to ten steps.
_UNKNOWN_STEPS = 30
_random = np.random.default_rng(0)
_IDS = _random.integers(0, _ROWS, (_STEPS * _BATCH, 4)).astype("int32")
_TARGETS = (_IDS.mean(axis=1, keepdims=True) / _ROWS).astype("float32")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    made = []

    def make(
        num_shards: int = 2, **options: Any
    ) -> tfps.ParameterServerStrategy:
        made.append(
            tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                tfps.partitioners.FixedShardsPartitioner(num_shards),
                **options,
            )
        )
        return made[-1]

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


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


class At(keras.callbacks.Callback):
    """Does something after some batches of the whole training."""

    def __init__(self, **actions: Callable[[], None]) -> None:
        super().__init__()
        self._actions = {
            int(name.removeprefix("batch_")): action
            for name, action in actions.items()
        }
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._batches += 1
        if self._batches in self._actions:
            self._actions[self._batches]()


def _fit(model: keras.Model, *callbacks: Any, **options: Any) -> Any:
    return model.fit(
        _IDS,
        _TARGETS,
        batch_size=_BATCH,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    ).history


def _recovered(strategy: tfps.ParameterServerStrategy) -> list[Any]:
    seen: list[Any] = []

    def note(event: Any) -> None:
        if isinstance(event, events.ParameterServerRecovered):
            seen.append(event)

    tfps.ClusterCoordinator(strategy).events.subscribe(note)
    return seen


def _restart(cluster: tfps.LocalCluster, *indices: int) -> None:
    for index in indices:
        cluster.kill("ps", index)
    for index in indices:
        cluster.start("ps", index)


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)], ids=str)
def test_fit_goes_on_after_ps_are_lost(
    cluster: tfps.LocalCluster,
    make: Make,
    tmp_path: pathlib.Path,
    lost: tuple[int, ...],
) -> None:
    strategy = make()
    model = _model(strategy)
    seen = _recovered(strategy)
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
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    history = _fit(
        model,
        # In the second epoch: in the first, functions are traced anyway.
        At(**{f"batch_{_STEPS + 20}": kill}),
        epochs=3,
    )
    assert sorted({event.ps_index for event in seen}) == list(lost)
    assert all(event.source == str(tmp_path / "ckpt-1") for event in seen)
    steps = int(model.optimizer.iterations)
    assert steps >= 3 * _STEPS - _UNKNOWN_STEPS * len(lost)
    for variable in model.variables:
        assert np.isfinite(keras.ops.convert_to_numpy(variable)).all()
    assert history["loss"][-1] < history["loss"][0]
    assert traced_before[0] > 0
    assert len(traces) == traced_before[0], "nothing is traced again"
    # The same model saves and is read as ever.
    manager.save()
    manager.sync()
    assert manager.restore_latest() == str(tmp_path / "ckpt-2")


def test_the_same_ps_twice(
    cluster: tfps.LocalCluster, make: Make, tmp_path: pathlib.Path
) -> None:
    strategy = make()
    model = _model(strategy)
    seen = _recovered(strategy)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    restart = At(
        batch_10=lambda: _restart(cluster, 0),
        batch_70=lambda: _restart(cluster, 0),
    )
    _fit(model, restart, epochs=2)
    assert [event.ps_index for event in seen] == [0, 0]
    steps = int(model.optimizer.iterations)
    assert steps >= 2 * _STEPS - 2 * _UNKNOWN_STEPS


def test_what_survived_is_kept_and_what_was_lost_is_the_checkpoints(
    cluster: tfps.LocalCluster, make: Make, tmp_path: pathlib.Path
) -> None:
    strategy = make()
    model = _model(strategy)
    table = model.get_layer("table").embeddings.value
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    saved = [shard.numpy() for shard in table.variables]
    _fit(model)
    trained = [shard.numpy() for shard in table.variables]
    iterations = int(model.optimizer.iterations)
    cluster.kill("ps", 1)
    cluster.start("ps", 1, wait=True)
    # The chief's own reading finds out, and waits.
    now = [shard.numpy() for shard in table.variables]
    for index, shard in enumerate(table.variables):
        was_lost = "/job:ps/replica:0/task:1" in shard.device
        expected = saved[index] if was_lost else trained[index]
        np.testing.assert_array_equal(now[index], expected)
    assert not np.array_equal(saved[0], trained[0])
    # Workers know better than the checkpoint how far training is.
    assert 0 <= iterations - int(model.optimizer.iterations) <= _UNKNOWN_STEPS


def test_everything_is_set_back_where_it_is_to_be_consistent(
    cluster: tfps.LocalCluster, make: Make, tmp_path: pathlib.Path
) -> None:
    strategy = make(recovery="consistent")
    model = _model(strategy)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    saved = [keras.ops.convert_to_numpy(v) for v in model.variables]
    _fit(model)
    cluster.kill("ps", 1)
    cluster.start("ps", 1, wait=True)
    # What is read before the lost ones are missed is of before.
    for variable in model.variables:
        keras.ops.convert_to_numpy(variable)
    for variable, value in zip(model.variables, saved, strict=True):
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(variable), value, variable.path
        )


def test_a_custom_loop_goes_on(
    cluster: tfps.LocalCluster, make: Make, tmp_path: pathlib.Path
) -> None:
    strategy = make(num_shards=1)
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(tf.zeros([4])) for _ in range(2)]
    assert len({v.device for v in variables}) == 2
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(variables=variables), tmp_path
    )
    manager.save()
    manager.sync()

    @tf.function
    def add() -> None:
        for variable in variables:
            variable.assign_add(tf.ones([4]))

    for number in range(200):
        if number == 50:
            coordinator.join()
            before = [v.numpy()[0] for v in variables]
            assert before == [50, 50]
            _restart(cluster, 0)
        coordinator.schedule(add)
    coordinator.join()
    lost, kept = (
        v.numpy()[0]
        for v in sorted(variables, key=lambda v: "task:0" not in v.device)
    )
    # Closures that had failed on one ps may have been applied on the other.
    assert lost >= 150
    assert kept >= 200


def test_without_a_checkpoint_the_loss_is_the_users(
    cluster: tfps.LocalCluster, make: Make
) -> None:
    strategy = make()
    model = _model(strategy)
    with pytest.raises(errors.ParameterServerLostError):
        _fit(model, At(batch_10=lambda: _restart(cluster, 1)), epochs=2)
    cluster.wait_until_ready()


def test_what_no_checkpoint_has_is_named(
    cluster: tfps.LocalCluster, make: Make, tmp_path: pathlib.Path
) -> None:
    strategy = make(num_shards=1)
    model = _model(strategy)
    with strategy.scope():
        forgotten = tf.Variable(tf.zeros([4]), name="forgotten")
    lost = int(forgotten.device.split("/task:")[1].split("/")[0])
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    with pytest.raises(errors.ParameterServerLostError, match="forgotten"):
        _fit(model, At(batch_10=lambda: _restart(cluster, lost)), epochs=2)
    cluster.wait_until_ready()


def test_tensorflows_behaviour_on_request(
    cluster: tfps.LocalCluster, make: Make, tmp_path: pathlib.Path
) -> None:
    strategy = make(in_place_recovery=False)
    model = _model(strategy)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    with pytest.raises(errors.ParameterServerLostError):
        _fit(model, At(batch_10=lambda: _restart(cluster, 1)), epochs=2)
    cluster.wait_until_ready()


def test_a_ps_that_stays_away_is_given_up(
    cluster: tfps.LocalCluster, make: Make, tmp_path: pathlib.Path
) -> None:
    strategy = make(ps_recovery_timeout_seconds=3.0)
    model = _model(strategy)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    kill = At(batch_10=lambda: cluster.kill("ps", 1))
    with pytest.raises(errors.ParameterServerLostError, match="3 s"):
        _fit(model, kill, epochs=2)
    cluster.start("ps", 1, wait=True)

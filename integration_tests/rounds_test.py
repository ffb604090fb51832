"""Tests that rounds of several steps train like rounds of one step."""

import logging
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import shared_training
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.training.steps.traced import rounds
from tfps_plugin.training.steps.tuning import packing

pytestmark = pytest.mark.cluster(num_workers=1, num_ps=2)

_ROWS = 50
_BATCH = 8
# Not a whole number of rounds of four steps.
_STEPS_OF_AN_EPOCH = 53


@pytest.fixture(autouse=True)
def rounds_pay_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_NUMBERS", (1, 2, 5, 10))
    monkeypatch.setattr(rounds, "_STEPS_BEFORE", 20)
    monkeypatch.setattr(rounds, "_STEPS_OF_A_CALL", 2)


@pytest.fixture
def without_rounds(monkeypatch: pytest.MonkeyPatch) -> Any:
    def leave_out() -> None:
        monkeypatch.setattr(rounds, "_STEPS_BEFORE", 10**9)

    return leave_out


def _dataset(context: Any = None) -> tf.data.Dataset:
    source = np.random.default_rng(5)
    ids = source.integers(0, _ROWS, (40 * _BATCH, 3))
    targets = source.normal(size=(40 * _BATCH, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((ids, targets)).batch(_BATCH)


def _forever(context: Any = None) -> tf.data.Dataset:
    return _dataset().repeat()


def _dropout() -> keras.layers.Layer:
    return keras.layers.Dropout(0.3, seed=9)


def _model(*layers: Callable[[], keras.layers.Layer]) -> keras.Model:
    keras.utils.set_random_seed(3)
    ids = keras.Input((3,), dtype="int32")
    rows = keras.layers.Embedding(_ROWS, 8)(ids)
    x = keras.layers.Flatten()(rows)
    for layer in (
        *(make() for make in layers),
        keras.layers.Dense(8, activation="relu"),
    ):
        x = layer(x)
    model = keras.Model(ids, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.Adagrad(0.05), "mse", metrics=["mae"])
    return model


def _initial(model: keras.Model) -> list[np.ndarray]:
    """Returns initial weights, because sharded tables draw different ones."""
    source = np.random.default_rng(2)
    return [
        source.uniform(0.1, 0.4, weight.shape).astype(weight.dtype)
        for weight in model.weights
    ]


def _fit(
    cluster: tfps.LocalCluster,
    *layers: Callable[[], keras.layers.Layer],
    consistency: tfps.Async | None = None,
) -> tuple[list[np.ndarray], dict[str, list[float]], str]:
    """Returns weights and logs after three epochs, and the steps' messages."""
    # One call at a time, so that the order of steps is fixed.
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        tfps.partitioners.FixedShardsPartitioner(2),
        consistency=consistency,
        scheduling=tfps.SchedulingOptions(prefetch_embeddings=False),
    )
    with strategy.scope():
        model = _model(*layers)
    model.set_weights(_initial(model))
    history = model.fit(
        tfps.DatasetCreator(_forever),
        epochs=3,
        steps_per_epoch=_STEPS_OF_AN_EPOCH,
        verbose=0,
    )
    assert int(model.optimizer.iterations) == 3 * _STEPS_OF_AN_EPOCH
    weights = [np.array(w) for w in model.weights + model.optimizer.variables]
    explained = str(strategy.explain(model, print_fn=None))
    coordinator = tfps.ClusterCoordinator(strategy)
    # Steps that follow one another see all earlier updates.
    for name, number in (
        ("updates", 3 * _STEPS_OF_AN_EPOCH),
        ("0", 3 * _STEPS_OF_AN_EPOCH),
        ("largest", 0),
    ):
        assert coordinator.counters.value(f"staleness_{name}") == number
    coordinator.close()
    return weights, history.history, explained


@pytest.mark.compat
def test_results_are_the_same(
    cluster: tfps.LocalCluster,
    without_rounds: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    weights, logs, explained = _fit(
        cluster, _dropout, keras.layers.BatchNormalization
    )
    assert "makes 4 steps from now on" in caplog.text
    assert "rounds_of_4_steps" in explained
    without_rounds()
    expected_weights, expected_logs, explained = _fit(
        cluster, _dropout, keras.layers.BatchNormalization
    )
    assert "rounds_of" not in explained
    assert logs == expected_logs
    for mine, theirs in zip(weights, expected_weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_steps_that_are_not_stale_keep_their_learning_rate(
    cluster: tfps.LocalCluster,
) -> None:
    weights, _, explained = _fit(cluster)
    assert "rounds_of_4_steps" in explained
    scaled, _, explained = _fit(
        cluster, consistency=tfps.Async(staleness_scaling=True)
    )
    assert "rounds_of_4_steps" in explained
    for mine, theirs in zip(scaled, weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_they_train_as_one_process_does(cluster: tfps.LocalCluster) -> None:
    _, logs, explained = _fit(cluster)
    assert "rounds_of_4_steps" in explained
    model = _model()
    model.set_weights(_initial(model))
    history = model.fit(
        _forever(), epochs=3, steps_per_epoch=_STEPS_OF_AN_EPOCH, verbose=0
    )
    for name, values in history.history.items():
        np.testing.assert_allclose(logs[name], values, rtol=2e-4)


class _SeededNoise(keras.layers.Layer):
    """Layer with random numbers of an operation that counts its runs."""

    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x), stddev=0.1, seed=4)


def test_steps_that_draw_from_a_seed_keep_to_rounds_of_one(
    cluster: tfps.LocalCluster,
) -> None:
    _, _, explained = _fit(cluster, _SeededNoise)
    assert "rounds_of" not in explained


def test_input_that_ends_is_read_to_its_end(cluster: tfps.LocalCluster) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    with strategy.scope():
        model = _model()
    model.fit(tfps.DatasetCreator(_dataset), epochs=3, verbose=0)
    assert int(model.optimizer.iterations) == 3 * 40
    explained = str(strategy.explain(model, print_fn=None))
    assert "rounds_of" not in explained
    tfps.ClusterCoordinator(strategy).close()


class _AtEpoch(keras.callbacks.Callback):
    def __init__(self, epoch: int, action: Callable[[], None]) -> None:
        super().__init__()
        self._epoch = epoch
        self._action = action

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._epoch:
            self._action()


@pytest.mark.parametrize("job", ["worker", "ps"])
@pytest.mark.sample(cases=1)
def test_a_task_that_is_lost_costs_some_steps(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path, job: str
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, tfps.partitioners.FixedShardsPartitioner(2)
    )
    with strategy.scope():
        model = _model()
        model.optimizer.build(model.trainable_variables)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)

    def lose() -> None:
        manager.save()
        manager.sync()
        explained = str(strategy.explain(model, print_fn=None))
        assert "rounds_of_4_steps" in explained
        cluster.kill(job, 0)
        cluster.start(job, 0)

    history = model.fit(
        tfps.DatasetCreator(_forever),
        epochs=5,
        steps_per_epoch=_STEPS_OF_AN_EPOCH,
        callbacks=[_AtEpoch(2, lose)],
        verbose=0,
    ).history
    assert len(history["loss"]) == 5
    assert history["loss"][-1] < history["loss"][0]
    coordinator = tfps.ClusterCoordinator(strategy)
    shared_training.assert_few_steps_twice(
        model, coordinator, 5 * _STEPS_OF_AN_EPOCH, num_losses=1
    )
    coordinator.close()


def _nothing(context: Any = None) -> tf.data.Dataset:
    return _dataset().filter(lambda ids, targets: False).repeat()


def test_they_end_where_there_is_nothing_to_repeat(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    with strategy.scope():
        model = _model()
    model.fit(
        tfps.DatasetCreator(_forever),
        epochs=3,
        steps_per_epoch=_STEPS_OF_AN_EPOCH,
        verbose=0,
    )
    assert "rounds_of" in str(strategy.explain(model, print_fn=None))
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(tfps.DatasetCreator(_nothing), steps_per_epoch=20, verbose=0)
    assert int(model.optimizer.iterations) == 3 * _STEPS_OF_AN_EPOCH
    tfps.ClusterCoordinator(strategy).close()

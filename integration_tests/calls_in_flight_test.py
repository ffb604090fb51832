"""Tests of the number of calls in flight of each worker during training."""

import logging
import re
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.training.steps.tuning.calls_in_flight import CallsInFlight

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_USERS, _ITEMS, _BATCH = 200, 300, 64
_rng = np.random.default_rng(3)
_IDS = np.stack(
    [_rng.integers(0, _USERS, 4096), _rng.integers(0, _ITEMS, 4096)], axis=1
).astype("int32")
_STARS = (1 + _IDS.sum(axis=1, keepdims=True) % 5).astype("float32")


class _Numbers(keras.callbacks.Callback):
    """Records the limit of a worker's calls in flight, whenever it changes."""

    def __init__(self, coordinator: tfps.ClusterCoordinator) -> None:
        super().__init__()
        self.seen: list[int] = []
        self._coordinator = coordinator

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        coordinator = self._coordinator
        number = coordinator.num_lanes // coordinator.num_workers
        if self.seen[-1:] != [number]:
            self.seen.append(number)
        if number > 1:
            self.model.stop_training = True


class Reports(keras.Model):
    """Model that reports a false loss, or none."""

    def __init__(self, report: Callable[[Any], dict[str, Any]]) -> None:
        super().__init__()
        self._layer = keras.layers.Dense(1)
        self._report = report

    def call(self, ids: Any) -> Any:
        return self._layer(keras.ops.cast(ids, "float32"))

    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return self._report(tf.cast(self.optimizer.iterations, tf.float32))


def _reported_loss(report: Callable[[Any], dict[str, Any]]) -> keras.Model:
    model = Reports(report)
    # It learns nothing.
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def _dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices((_IDS, _STARS))
        .shard(context.num_input_pipelines, context.input_pipeline_id)
        .shuffle(4096, seed=1)
        .repeat()
        .batch(_BATCH)
    )


@pytest.fixture
def new_strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[Callable[..., tfps.ParameterServerStrategy]]:
    made = []

    def make(**scheduling: Any) -> tfps.ParameterServerStrategy:
        made.append(
            # Short calls are measured soon.
            tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                scheduling=tfps.SchedulingOptions(
                    steps_per_closure=5, **scheduling
                ),
            )
        )
        return made[-1]

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


_NewStrategy = Callable[..., tfps.ParameterServerStrategy]


@pytest.mark.parametrize("reads", ["workers", "chief"])
@pytest.mark.sample(cases=1)
def test_one_at_a_time_until_the_loss_is_level_and_then_more_are_tried(
    new_strategy: _NewStrategy, caplog: pytest.LogCaptureFixture, reads: str
) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    strategy = new_strategy()
    with strategy.scope():
        model = _reported_loss(lambda steps: {"loss": tf.constant(0.7)})
    coordinator = tfps.ClusterCoordinator(strategy)
    numbers = _Numbers(coordinator)
    data = (
        tfps.DatasetCreator(_dataset)
        if reads == "workers"
        else tf.data.Dataset.from_tensor_slices((_IDS, _STARS))
        .repeat()
        .batch(_BATCH)
    )
    model.fit(data, steps_per_epoch=20_000, callbacks=[numbers], verbose=0)
    assert numbers.seen == [1, 2]
    [after] = re.findall(r"After (\d+) steps, the training loss", caplog.text)
    assert 1024 <= int(after) < 1100
    # The program's own functions run as before.
    assert coordinator.num_lanes == 2 * coordinator.num_workers


@pytest.mark.parametrize(
    ("report", "steps"),
    [
        (lambda steps: {"loss": 100 / tf.sqrt(1 + steps)}, 2500),
        # There is no telling whether this falls.
        (lambda steps: {"d_loss": tf.constant(0.7)}, 1500),
    ],
)
@pytest.mark.sample(cases=1)
def test_one_at_a_time_while_the_loss_falls_or_may_fall(
    new_strategy: _NewStrategy,
    report: Callable[[Any], dict[str, Any]],
    steps: int,
) -> None:
    strategy = new_strategy()
    with strategy.scope():
        model = _reported_loss(report)
    numbers = _Numbers(tfps.ClusterCoordinator(strategy))
    model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=5,
        steps_per_epoch=steps // 5,
        callbacks=[numbers],
        verbose=0,
    )
    assert numbers.seen == [1]


def test_without_a_loss_more_are_tried_after_some_steps(
    new_strategy: _NewStrategy,
) -> None:
    strategy = new_strategy()
    with strategy.scope():
        model = _reported_loss(lambda steps: {"d_loss": tf.constant(0.7)})
    numbers = _Numbers(tfps.ClusterCoordinator(strategy))
    model.fit(
        tfps.DatasetCreator(_dataset),
        steps_per_epoch=20_000,
        callbacks=[numbers],
        verbose=0,
    )
    assert numbers.seen == [1, 2]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_closures_in_flight_per_worker": 3}, 3),
        ({"max_closures_in_flight_per_worker": 1}, 1),
        ({"prefetch_embeddings": True}, 2),
        ({"prefetch_embeddings": False}, 1),
    ],
)
def test_what_was_set_is_what_training_begins_with(
    new_strategy: _NewStrategy, options: dict[str, Any], expected: int
) -> None:
    strategy = new_strategy(**options)
    with strategy.scope():
        model = _reported_loss(lambda steps: {"loss": 100 / (1 + steps)})
    numbers = _Numbers(tfps.ClusterCoordinator(strategy))
    model.fit(
        tfps.DatasetCreator(_dataset),
        steps_per_epoch=300,
        callbacks=[numbers],
        verbose=0,
    )
    assert numbers.seen == [expected]


def test_ratings_are_learnt_with_one_call_at_a_time(
    new_strategy: _NewStrategy,
) -> None:
    strategy = new_strategy()
    with strategy.scope():
        both = keras.Input((2,), dtype="int32")
        hidden = keras.layers.Concatenate()(
            [
                keras.layers.Embedding(size, 16)(both[:, column])
                for column, size in enumerate((_USERS, _ITEMS))
            ]
        )
        for units in (32, 16):
            hidden = keras.layers.Dense(units, activation="relu")(hidden)
        model = keras.Model(both, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(0.005), "mean_squared_error")
    numbers = _Numbers(tfps.ClusterCoordinator(strategy))
    losses = model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=3,
        steps_per_epoch=150,
        callbacks=[numbers],
        verbose=0,
    ).history["loss"]
    assert numbers.seen == [1]
    assert losses[-1] < 0.8 * losses[0]


class Counts(keras.Model):
    """Model whose loss is its number of steps; it learns nothing."""

    def __init__(self, returned: str) -> None:
        super().__init__()
        self._layer = keras.layers.Dense(1)
        self._returned = returned

    def call(self, ids: Any) -> Any:
        return self._layer(keras.ops.cast(ids, "float32"))

    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        loss = tf.cast(self.optimizer.iterations, tf.float32)
        if self._returned == "loss of the batch":
            return {"loss": loss}
        if self._returned == "nested":
            return {"loss": {"total": loss, "regularization": 0.0 * loss}}
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class _Resets(keras.callbacks.Callback):
    """Resets metrics in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 300:
            self.model.reset_metrics()


@pytest.mark.parametrize(
    "returned", ["mean", "reset mean", "loss of the batch", "nested"]
)
@pytest.mark.sample(cases=2)
def test_the_losses_behind_what_a_step_returns(
    new_strategy: _NewStrategy,
    monkeypatch: pytest.MonkeyPatch,
    returned: str,
) -> None:
    seen: list[float | None] = []
    observe_loss = CallsInFlight.observe_loss

    def note(
        self: CallsInFlight,
        num_steps: int,
        lane: int,
        mean: float | None,
        now: float,
    ) -> None:
        seen.append(mean)
        observe_loss(self, num_steps, lane, mean, now)

    monkeypatch.setattr(CallsInFlight, "observe_loss", note)
    strategy = new_strategy()
    with strategy.scope():
        model = Counts(returned)
        model.tracker = keras.metrics.Mean(name="total_loss")
        model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(
        tfps.DatasetCreator(_dataset),
        epochs=2,
        steps_per_epoch=600,
        # It makes every call report.
        callbacks=[
            _Resets()
            if returned == "reset mean"
            else keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: None
            )
        ],
        verbose=0,
    )
    known = [loss for loss in seen if loss is not None]
    if returned == "nested":
        assert not known
        assert seen
        return
    # Every call reports by itself: the mean of an epoch would be 900.
    assert len(known) == len(seen)
    assert 1150 < max(known) <= 1201
    assert min(known) < 50
    # Calls of different lengths report: how far depends on the machine.
    steps = np.linspace(0, 1200, len(known))
    assert np.max(np.abs(np.array(known) - steps)) < 250

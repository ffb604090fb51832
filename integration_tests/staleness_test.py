"""Tests of the staleness of asynchronous training, and of scaling by it.

A gate holds up the first step of worker 0 between its reads and its update,
while worker 1 makes all others.
"""

import logging
import pathlib
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_gate import Gate

import tfps_plugin as tfps
from tfps_plugin.training.optimizers.step_staleness import StepStaleness
from tfps_plugin.training.steps.traced import rounds
from tfps_plugin.training.steps.tuning import packing

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_ROWS, _WIDTH, _FEATURES, _BATCH, _STEPS = 40, 4, 3, 8, 12
_RATE = 0.1
_PATIENCE_SECONDS = 60.0
_random = np.random.default_rng(5)
# Workers, steps, examples.
_IDS = _random.integers(0, _ROWS, (2, _STEPS, _BATCH, _FEATURES))
_TARGETS = _random.normal(size=(2, _STEPS, _BATCH, 1)).astype("float32")
_TABLE = _random.normal(size=(_ROWS, _WIDTH)).astype("float32")
_KERNEL = _random.normal(size=(_FEATURES * _WIDTH, 1)).astype("float32")

Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    """Yields a maker of strategies."""
    made = []

    def make(**options: Any) -> tfps.ParameterServerStrategy:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            **options,
        )
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def gates(tmp_path: pathlib.Path) -> Iterator[list[Gate]]:
    """Yields a gate in a step of worker 0, and one in worker 1's input."""
    gates = []
    for name in ("step", "input"):
        folder = tmp_path / name
        folder.mkdir()
        gates.append(Gate(folder))
    yield gates
    for gate in gates:
        gate.close()


class Linear(keras.Model):
    """Rows of a table, concatenated, times a kernel."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__()
        self._gate = gate
        self.table = keras.layers.Embedding(_ROWS, _WIDTH)
        self.flat = keras.layers.Flatten()
        self.top = keras.layers.Dense(1, use_bias=False)

    def build(self, input_shape: Any) -> None:
        self.table.build(input_shape)
        self.top.build((None, _FEATURES * _WIDTH))

    def call(self, ids: Any) -> Any:
        return self.top(self.flat(self.table(ids)))

    def train_step(self, data: Any) -> Any:
        (ids, is_held), targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(ids) - targets) ** 2)
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        if self._gate is not None:
            with tf.control_dependencies(
                [self._gate.passing(is_held & tf.math.is_finite(loss))]
            ):
                gradients = tf.nest.map_structure(
                    tf.identity, gradients, expand_composites=True
                )
        self.optimizer.apply(gradients, weights)
        return {"loss": loss}


def _step_in_numpy(
    weights: list[np.ndarray], worker: int, step: int
) -> list[np.ndarray]:
    """Returns the gradients of a batch."""
    table, kernel = weights
    ids, targets = _IDS[worker, step], _TARGETS[worker, step]
    x = table[ids].reshape([_BATCH, -1])
    error = 2.0 * (x @ kernel - targets) / _BATCH
    rows = np.zeros_like(table)
    np.add.at(rows, ids, (error @ kernel.T).reshape([*ids.shape, _WIDTH]))
    return [rows, x.T @ error]


def _dataset(worker: int, gate: Gate | None) -> tf.data.Dataset:
    numbers = tf.data.Dataset.range(_STEPS)
    batches = tf.data.Dataset.from_tensor_slices(
        (_IDS[worker], _TARGETS[worker])
    )

    def element(number: tf.Tensor, batch: Any) -> Any:
        ids, targets = batch
        is_first = number == 0
        if gate is not None and worker == 1:
            with tf.control_dependencies([gate.passing(is_first)]):
                ids = tf.identity(ids)
        return (ids, is_first & (worker == 0)), targets

    return tf.data.Dataset.zip(numbers, batches).map(element).repeat()


def _model(
    strategy: tfps.ParameterServerStrategy,
    optimizer: Callable[[], Any] = lambda: keras.optimizers.SGD(_RATE),
    gate: Gate | None = None,
) -> keras.Model:
    with strategy.scope():
        model = Linear(gate)
        model.compile(optimizer())
        model.build((None, _FEATURES))
    model.set_weights([_TABLE, _KERNEL])
    return model


@pytest.mark.parametrize("sparse_update", ["lazy", "exact"])
@pytest.mark.parametrize("is_scaling", [False, True])
def test_a_step_that_is_held_up_is_as_stale_as_the_others_are_many(
    make: Make,
    gates: list[Gate],
    caplog: pytest.LogCaptureFixture,
    is_scaling: bool,
    sparse_update: Any,
) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    strategy = make(
        consistency=tfps.Async(staleness_scaling=is_scaling),
        sparse_update=sparse_update,
        scheduling=tfps.SchedulingOptions(
            max_closures_in_flight_per_worker=1, steps_per_closure=1
        ),
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    in_step, in_input = gates
    model = _model(strategy, gate=in_step)

    def let_others_go() -> None:
        in_input.open()
        _wait_until(
            lambda: coordinator.counters.value("steps_done") == _STEPS - 1
        )
        in_step.open()

    in_step.once_reached(let_others_go)
    model.fit(
        tfps.DatasetCreator(
            lambda context: _dataset(context.input_pipeline_id, in_input)
        ),
        steps_per_epoch=_STEPS,
        verbose=0,
    )
    in_step.assert_acted()
    weights = [_TABLE.astype("float64"), _KERNEL.astype("float64")]
    held = _step_in_numpy(weights, 0, 0)
    for step in range(_STEPS - 1):
        gradients = _step_in_numpy(weights, 1, step)
        weights = [
            w - _RATE * g for w, g in zip(weights, gradients, strict=True)
        ]
    rate = _RATE / (_STEPS - 1) if is_scaling else _RATE
    weights = [w - rate * g for w, g in zip(weights, held, strict=True)]
    for mine, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)
    counted = {
        name: number
        for name, number in coordinator.counters.snapshot().items()
        if name.startswith("staleness") and number
    }
    assert counted == {
        "staleness_0": _STEPS - 1,
        "staleness_9_to_16": 1,
        "staleness_largest": _STEPS - 1,
        "staleness_sum": _STEPS - 1,
        "staleness_updates": _STEPS,
    }
    assert (
        f"Staleness of the {_STEPS} updates of {model.name} in this epoch: "
        f"mean 0.92, largest {_STEPS - 1} (0: 91.7%, 9 to 16: 8.33%)."
    ) in caplog.text


def test_a_round_of_local_steps_is_one_update_and_stale_since_its_start(
    make: Make, gates: list[Gate]
) -> None:
    local_steps = 2
    strategy = make(
        consistency=tfps.Async(local_steps=local_steps),
        scheduling=tfps.SchedulingOptions(
            max_closures_in_flight_per_worker=1, steps_per_closure=local_steps
        ),
    )
    counters = tfps.ClusterCoordinator(strategy).counters
    in_step, in_input = gates
    model = _model(strategy, gate=in_step)

    def let_others_go() -> None:
        in_input.open()
        _wait_until(
            lambda: counters.value("steps_done") == _STEPS - local_steps
        )
        in_step.open()

    in_step.once_reached(let_others_go)
    model.fit(
        tfps.DatasetCreator(
            lambda context: _dataset(context.input_pipeline_id, in_input)
        ),
        steps_per_epoch=_STEPS,
        verbose=0,
    )
    in_step.assert_acted()
    num_rounds = _STEPS // local_steps
    assert int(model.optimizer.iterations) == num_rounds
    assert counters.value("staleness_updates") == num_rounds
    assert counters.value("staleness_0") == num_rounds - 1
    assert counters.value("staleness_largest") == num_rounds - 1
    assert counters.value("staleness_sum") == num_rounds - 1


def _wait_until(predicate: Callable[[], bool]) -> None:
    """Waits until a condition holds that no event announces."""
    never = threading.Event()
    for _ in range(int(_PATIENCE_SECONDS / 0.02)):
        if predicate():
            return
        never.wait(0.02)
    raise AssertionError("It has not come true.")


def test_a_scheduled_function_is_scaled_too(
    make: Make, gates: list[Gate]
) -> None:
    strategy = make(
        consistency=tfps.Async(staleness_scaling=True),
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1),
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    model = _model(strategy, gate=gates[0])
    model.optimizer.build(model.trainable_variables)

    @tf.function
    def step(ids: Any, targets: Any, is_held: Any) -> None:
        strategy.run(model.train_step, args=(((ids, is_held), targets),))

    def scheduled(worker: int, number: int) -> tfps.RemoteValue:
        batch = _IDS[worker, number], _TARGETS[worker, number]
        return coordinator.schedule(step, args=(*batch, worker == 0))

    others = 4

    def let_others_go() -> None:
        for number in range(others):
            scheduled(1, number).fetch()
        gates[0].open()

    gates[0].once_reached(let_others_go)
    scheduled(0, 0).fetch()
    gates[0].assert_acted()
    weights = [_TABLE.astype("float64"), _KERNEL.astype("float64")]
    held = _step_in_numpy(weights, 0, 0)
    for number in range(others):
        gradients = _step_in_numpy(weights, 1, number)
        weights = [
            w - _RATE * g for w, g in zip(weights, gradients, strict=True)
        ]
    weights = [
        w - _RATE / others * g for w, g in zip(weights, held, strict=True)
    ]
    for mine, expected in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(mine, expected, atol=1e-5)


@pytest.mark.parametrize("is_scaling", [False, True])
def test_a_step_sends_no_more_messages(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_scaling: bool
) -> None:
    messages = []
    for is_on in (True, False):
        if not is_on:
            monkeypatch.setattr(StepStaleness, "read", lambda self, parts: None)
        strategy = make(
            consistency=tfps.Async(staleness_scaling=is_on and is_scaling)
        )
        model = _model(strategy, lambda: keras.optimizers.Adam(_RATE))
        model.fit(
            tfps.DatasetCreator(lambda context: _dataset(0, None)),
            steps_per_epoch=3,
            verbose=0,
        )
        explanation = strategy.explain(model, print_fn=None)
        messages.append(
            [
                (sent.source, sent.destination, sent.wave, sent.num_parcels)
                for body in explanation.bodies
                for sent in body.sent
            ]
        )
    assert messages[0] == messages[1]


@pytest.fixture
def rounds_pay_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_NUMBERS", (1, 2, 5, 10))
    monkeypatch.setattr(rounds, "_STEPS_BEFORE", 20)
    monkeypatch.setattr(rounds, "_STEPS_OF_A_CALL", 2)


def test_every_update_is_counted_once(
    make: Make, rounds_pay_at_once: None
) -> None:
    strategy = make()
    model = _model(strategy, lambda: keras.optimizers.Adam(0.01))
    model.fit(
        tfps.DatasetCreator(
            lambda context: _dataset(context.input_pipeline_id, None)
        ),
        epochs=3,
        steps_per_epoch=53,
        verbose=0,
    )
    counters = tfps.ClusterCoordinator(strategy).counters.snapshot()
    bins = {
        name: number
        for name, number in counters.items()
        if name.startswith("staleness_") and name[len("staleness_")].isdigit()
    }
    assert sum(bins.values()) == counters["staleness_updates"] == 3 * 53


class _AtEpoch(keras.callbacks.Callback):
    def __init__(self, epoch: int, action: Callable[[], None]) -> None:
        super().__init__()
        self._epoch = epoch
        self._action = action

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self._epoch:
            self._action()


def test_counts_begin_again_after_the_loss_of_a_ps(
    cluster: tfps.LocalCluster, make: Make, tmp_path: pathlib.Path
) -> None:
    strategy = make(consistency=tfps.Async(staleness_scaling=True))
    model = _model(strategy)
    model.optimizer.build(model.trainable_variables)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)

    def lose() -> None:
        manager.save()
        manager.sync()
        cluster.kill("ps", 0)
        cluster.start("ps", 0)

    history = model.fit(
        tfps.DatasetCreator(
            lambda context: _dataset(context.input_pipeline_id, None)
        ),
        epochs=4,
        steps_per_epoch=40,
        callbacks=[_AtEpoch(2, lose)],
        verbose=0,
    ).history
    assert np.isfinite(history["loss"]).all()
    counters = tfps.ClusterCoordinator(strategy).counters
    # Steps that were in flight are not made, or made again.
    assert 120 <= counters.value("staleness_updates") <= 200
    assert counters.value("staleness_largest") < 40

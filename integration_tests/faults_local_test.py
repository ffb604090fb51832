"""Tests of rounds of local steps whose worker or parameter server is lost.

All weights are dense, and the optimizer is plain SGD: rounds of one worker are
then steps of one process.
"""

import pathlib
import signal
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from shared_gate import Gate
from shared_losses import StoppedPs
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin.monitoring import events

# Each test loses a task, and takes long.
pytestmark = [
    pytest.mark.cluster(num_workers=1, num_ps=2),
    pytest.mark.sample(cases=2, group="faults_local_steps"),
]

_LOCAL = 4
_STEPS, _BATCH = 12, 8
# In the second of three rounds.
_HELD = 5
_RATE = 0.05
# A task that hangs is probed after this time.
_PATIENCE_SECONDS = 2.0
_random = np.random.default_rng(5)
_X = _random.normal(size=(_STEPS * _BATCH, 3)).astype("float32")
_Y = _X[:, :1] - _X[:, 1:2]
# Tells which step is held up.
_X[:, 2] = 0
_X[_HELD * _BATCH, 2] = 1

Make = Callable[[], tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    """Yields a maker of strategies; a call of a worker has one round."""
    made = []

    def make() -> tfps.ParameterServerStrategy:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            consistency=tfps.Async(local_steps=_LOCAL),
            scheduling=tfps.SchedulingOptions(
                max_closures_in_flight_per_worker=1, steps_per_closure=_LOCAL
            ),
        )
        made.append(strategy)
        return strategy

    yield make
    for strategy in made:
        tfps.ClusterCoordinator(strategy).close()


@pytest.fixture
def one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets calls with batches of the chief follow one another."""
    monkeypatch.setattr(
        "tfps_plugin.training.steps.epoch.chief_read_run.ChiefReadRun"
        "._most_closures_in_flight",
        1,
    )


class Held(keras.Model):
    """A linear model whose step is held up where its data say so."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self.layer = keras.layers.Dense(1)

    def build(self, input_shape: Any) -> None:
        self.layer.build((None, 2))

    def call(self, inputs: Any) -> Any:
        return self.layer(inputs[:, :2])

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights)
        is_held = tf.reduce_any(x[:, 2] > 0) & tf.math.is_finite(loss)
        with tf.control_dependencies([self._gate.passing(is_held)]):
            gradients = [tf.identity(gradient) for gradient in gradients]
        self.optimizer.apply(gradients, weights)
        return {"loss": loss}


def _held(
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    weight_decay: float | None = None,
) -> Held:
    with strategy.scope():
        model = Held(gate)
        model.compile(keras.optimizers.SGD(_RATE, weight_decay=weight_decay))
        model.build((None, 3))
        model.optimizer.build(model.trainable_variables)
    model.set_weights(
        [
            np.linspace(0.2, 0.4, weight.shape.num_elements()).reshape(
                weight.shape
            )
            for weight in model.trainable_variables
        ]
    )
    return model


def _fit(model: keras.Model) -> None:
    model.fit(_X, _Y, batch_size=_BATCH, shuffle=False, verbose=0)


def _in_numpy(
    initial: list[np.ndarray],
    set_back: list[np.ndarray] | None = None,
    weight_decay: float = 0.0,
) -> list[np.ndarray]:
    """Returns kernel and bias after training.

    Args:
        initial: Kernel and bias before it.
        set_back: Where these are set back to their initial values, between the
            first round and the second; None: nowhere.
        weight_decay: That of the optimizer, which decays once in each round.
    """
    kernel, bias = (value.astype("float64") for value in initial)
    for step in range(_STEPS):
        if step == _LOCAL and set_back is not None:
            kernel = np.where(set_back[0], initial[0], kernel)
            bias = np.where(set_back[1], initial[1], bias)
        if step % _LOCAL == 0:
            before = kernel, bias
        examples = slice(step * _BATCH, (step + 1) * _BATCH)
        x = _X[examples, :2]
        upstream = 2 * (x @ kernel + bias - _Y[examples]) / _BATCH
        kernel = kernel - _RATE * x.T @ upstream
        bias = bias - _RATE * upstream.sum(axis=0)
        if (step + 1) % _LOCAL == 0:
            kernel = kernel - _RATE * weight_decay * before[0]
            bias = bias - _RATE * weight_decay * before[1]
    return [kernel, bias]


def _is_on(model: keras.Model, ps_index: int) -> list[np.ndarray]:
    """Returns which elements of the weights are on a parameter server."""
    found = []
    for variable in model.trainable_variables:
        shards = getattr(variable.value, "variables", [variable.value])
        found.append(
            np.concatenate(
                [
                    np.full(
                        shard.shape, f"ps/replica:0/task:{ps_index}/" in device
                    )
                    for shard in shards
                    for device in [shard.device]
                ]
            )
        )
    return found


def _assert_each_round_counts_once(
    strategy: tfps.ParameterServerStrategy,
    model: keras.Model,
    expected: list[np.ndarray],
) -> None:
    for weight, value in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_allclose(weight, value, atol=1e-5)
    assert int(model.optimizer.iterations) == _STEPS // _LOCAL
    counters = tfps.ClusterCoordinator(strategy).counters
    assert counters.value("steps_done") == _STEPS


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_the_round_of_a_lost_worker_is_made_again(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    one_call_at_a_time: None,
    weight_decay: float,
) -> None:
    strategy = make()
    model = _held(strategy, gate, weight_decay or None)
    initial = model.get_weights()

    def lose() -> None:
        cluster.kill("worker", 0)
        gate.open()
        cluster.start("worker", 0)

    gate.once_reached(lose)
    _fit(model)
    gate.assert_acted()
    expected = _in_numpy(initial, weight_decay=weight_decay)
    _assert_each_round_counts_once(strategy, model, expected)
    counters = tfps.ClusterCoordinator(strategy).counters
    assert counters.value("steps_again") == _LOCAL


def test_a_worker_that_hangs_makes_its_round_again_when_it_goes_on(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    one_call_at_a_time: None,
) -> None:
    strategy = make()
    seen = Seen(
        tfps.ClusterCoordinator(strategy, patience_seconds=_PATIENCE_SECONDS)
    )
    model = _held(strategy, gate)
    initial = model.get_weights()
    process = cluster.process("worker", 0)

    def go_on(event: events.Event) -> None:
        if isinstance(event, events.WorkerLost):
            process.send_signal(signal.SIGCONT)

    seen.on_event = go_on

    def stop() -> None:
        gate.let_others_pass()
        process.send_signal(signal.SIGSTOP)

    gate.once_reached(stop)
    try:
        _fit(model)
    finally:
        process.send_signal(signal.SIGCONT)
    gate.assert_acted()
    # The round that was given up is still held up.
    _assert_each_round_counts_once(strategy, model, _in_numpy(initial))
    counters = tfps.ClusterCoordinator(strategy).counters
    # Its earlier connection may break the new one once.
    assert counters.value("steps_again") in (_LOCAL, 2 * _LOCAL)


class _Killed:
    """A ps that is killed, and comes back."""

    def __init__(
        self, cluster: tfps.LocalCluster, seen: Seen, lost: int, gate: Gate
    ) -> None:
        self._cluster = cluster
        self._seen = seen
        self._lost = lost
        self._gate = gate

    def happen(self) -> None:
        self._cluster.kill("ps", self._lost)
        # Then the round is cancelled already, and sends nothing any more.
        self._seen.wait_for(events.ParameterServerLost)
        self._gate.open()
        self._cluster.start("ps", self._lost)

    def end(self) -> None:
        pass


class _Stopped(StoppedPs):
    """A ps that hangs, is given up, and goes on."""

    def __init__(
        self, cluster: tfps.LocalCluster, seen: Seen, lost: int, gate: Gate
    ) -> None:
        super().__init__(cluster, seen, lost)
        self._seen = seen
        self._gate = gate

    def happen(self) -> None:
        self._gate.let_others_pass()
        super().happen()
        # Likewise: the round was cancelled when the ps was given up.
        self._seen.wait_for(events.ParameterServerRecovered)
        self._go_on_with_round()

    def _go_on_with_round(self) -> None:
        self._gate.open()


class _StoppedAndRoundGoesOn(_Stopped):
    """The same, and the round never ends on its worker."""

    def _go_on_with_round(self) -> None:
        pass


@pytest.mark.parametrize("loss", [_Killed, _Stopped, _StoppedAndRoundGoesOn])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_round_in_which_a_ps_is_lost_is_made_again(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    one_call_at_a_time: None,
    tmp_path: pathlib.Path,
    lost: int,
    loss: Callable[..., Any],
) -> None:
    """Variables of the lost one are those of the checkpoint, as always."""
    strategy = make()
    seen = Seen(
        tfps.ClusterCoordinator(strategy, patience_seconds=_PATIENCE_SECONDS)
    )
    model = _held(strategy, gate)
    initial = model.get_weights()
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    set_back = _is_on(model, lost)
    assert any(map(np.any, set_back))
    assert not all(map(np.all, set_back))

    how = loss(cluster, seen, lost, gate)
    gate.once_reached(how.happen)
    try:
        _fit(model)
    finally:
        how.end()
    gate.assert_acted()
    assert seen.recovered() == [lost]
    _assert_each_round_counts_once(
        strategy, model, _in_numpy(initial, set_back)
    )

"""Tests of steps that use sums over workers, and whose tasks fail.

The model normalizes by the statistics of all workers. Whatever fails, the
weights are those of one process that trains with the examples that counted.
"""

import os
import pathlib
import re
import signal
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import pytest
import shared_cluster
import shared_spans
import tensorflow as tf
from shared_gate import Gate
from shared_losses import LostPs
from shared_losses import LostWorker
from shared_losses import StoppedPs
from shared_losses import StoppedWorker
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps

# Each test loses or delays tasks, and takes long; giving up a worker that hangs
# takes longest.
pytestmark = [
    pytest.mark.sample(cases=2, group="faults_sums"),
    pytest.mark.timeout(150),
]

_WORKERS, _PS = 3, 2
_LOST = 2
_SHARE = 8
_STEPS = 16
# The step in which the lost worker is held up.
_HELD = 6
# The number of steps after which the model is saved.
_SAVED = 3
_PATIENCE_SECONDS = 3.0

_random = np.random.default_rng(0)
# Steps, workers, examples.
_X = _random.normal(size=(_STEPS, _WORKERS, _SHARE, 8)).astype("float32")
_Y = (_X @ _random.normal(size=(8, 1)) + 1.0).astype("float32")


class _Batch(NamedTuple):
    """The examples of one step.

    Attributes:
        workers: Indices of the workers whose examples they are.
        step: The step whose examples they are.
        silent: Further workers, whose examples are in the statistics only.
    """

    workers: Sequence[int]
    step: int
    silent: Sequence[int] = ()


@pytest.fixture(scope="module")
def living_cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=_WORKERS, num_ps=_PS) as cluster:
        yield cluster


@pytest.fixture
def cluster(living_cluster: tfps.LocalCluster) -> tfps.LocalCluster:
    """Returns the cluster of the module, with all its tasks."""
    return shared_cluster.with_all_tasks(living_cluster)


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    """Yields a strategy; checks that no span has left anything."""
    earlier = shared_spans.queues()
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=tfps.Sync()
    )
    tfps.ClusterCoordinator(strategy, patience_seconds=_PATIENCE_SECONDS)
    yield strategy
    try:
        shared_spans.assert_nothing_is_left(earlier)
    finally:
        tfps.ClusterCoordinator(strategy).close()


class _Gated(keras.layers.Layer):
    """Holds up examples whose last feature is set."""

    def __init__(self, gate: Gate | None) -> None:
        super().__init__()
        self._gate = gate

    def call(self, x: tf.Tensor, held: tf.Tensor) -> tf.Tensor:
        if self._gate is None:
            return x
        # The gate is reached when the layers before it have their results.
        has_come = tf.reduce_all(tf.math.is_finite(x))
        passing = self._gate.passing(tf.reduce_any(held > 0) & has_come)
        with tf.control_dependencies([passing]):
            return tf.identity(x)


def _layers(gates: Sequence[Gate | None] = (None, None)) -> keras.Model:
    """Returns a model with a gate before its normalization, and one after."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,))
    held = keras.Input((1,))
    before, after = gates
    hidden = keras.layers.Dense(6, "tanh", name="first")(inputs)
    hidden = _Gated(before)(hidden, held)
    hidden = keras.layers.BatchNormalization(
        synchronized=True, momentum=0.5, name="norm"
    )(hidden)
    hidden = _Gated(after)(hidden, held)
    outputs = keras.layers.Dense(1, name="last")(hidden)
    return keras.Model([inputs, held], outputs)


def _optimizer() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def _model(
    strategy: tfps.ParameterServerStrategy,
    gates: Sequence[Gate | None] = (None, None),
    **options: Any,
) -> keras.Model:
    with strategy.scope():
        model = _layers(gates)
        model.compile(_optimizer(), "mse", **options)
        model.optimizer.build(model.trainable_variables)
    return model


def _data(
    held: int | None = None,
    *,
    is_constant: bool = False,
    lengths: Sequence[int] = (_STEPS,) * _WORKERS,
) -> dict[str, Any]:
    """Returns input that each worker reads for itself.

    Args:
        held: The step in which the lost worker is held up.
        is_constant: Whether the examples are the same in every step.
        lengths: How many steps the examples of each worker are for.
    """
    x, y = (
        np.repeat(each[:1], _STEPS, 0) if is_constant else each
        for each in (_X, _Y)
    )
    flags = np.zeros_like(y)
    if held is not None:
        flags[held, _LOST] = 1.0

    def dataset_fn(context: Any) -> tf.data.Dataset:
        worker = context.input_pipeline_id
        parts = [each[: lengths[worker], worker] for each in (x, flags, y)]
        return tf.data.Dataset.from_tensor_slices(
            ((parts[0], parts[1]), parts[2])
        )

    return {"x": tfps.DatasetCreator(dataset_fn)}


def _of_the_chief(held: int) -> dict[str, Any]:
    """Returns input that the chief reads and cuts, as `_data`."""
    flags = np.zeros_like(_Y)
    flags[held, _LOST] = 1.0
    x, flags, y = (each.reshape(-1, each.shape[-1]) for each in (_X, flags, _Y))
    size = _WORKERS * _SHARE
    return {"x": [x, flags], "y": y, "batch_size": size, "shuffle": False}


def _all(step: int) -> _Batch:
    return _Batch(range(_WORKERS), step)


def _others(step: int) -> _Batch:
    return _Batch(range(_LOST), step)


def _alone(batches: Sequence[_Batch]) -> list[np.ndarray]:
    """Returns the weights of one process that trains with batches."""

    def rows(values: np.ndarray, step: int, workers: Sequence[int]) -> Any:
        return np.concatenate([values[step, worker] for worker in workers])

    with tf.device("/device:CPU:0"):
        model = _layers()
        first, norm, last = map(model.get_layer, ("first", "norm", "last"))
        optimizer = _optimizer()
        optimizer.build(model.trainable_variables)
        for workers, step, silent in batches:
            with tf.GradientTape() as tape:
                hidden = first(rows(_X, step, workers))
                size = hidden.shape[0]
                if silent:
                    told = tf.stop_gradient(first(rows(_X, step, silent)))
                    hidden = tf.concat([hidden, told], 0)
                outputs = last(norm(hidden, training=True)[:size])
                loss = tf.reduce_mean(
                    tf.square(outputs - rows(_Y, step, workers))
                )
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return model.get_weights()


def _assert_same(model: keras.Model, batches: Sequence[_Batch]) -> None:
    for found, expected in zip(
        model.get_weights(), _alone(batches), strict=True
    ):
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max())
        )


def _fit(model: keras.Model, data: dict[str, Any], *callbacks: Any) -> None:
    model.fit(
        **data, steps_per_epoch=_STEPS, verbose=0, callbacks=list(callbacks)
    )


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("loss", [LostWorker, StoppedWorker])
def test_steps_go_on_without_a_worker_that_is_lost_at_a_normalization(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    loss: type[LostWorker],
    place: str,
) -> None:
    seen = Seen(tfps.ClusterCoordinator(strategy))
    gates = (gate, None) if place == "before" else (None, gate)
    model = _model(strategy, gates)
    how = loss(cluster, gate, _LOST)
    gate.once_reached(how.happen)
    try:
        _fit(model, _data(_HELD))
    finally:
        how.end()
    gate.assert_acted()
    assert int(model.optimizer.iterations) == _STEPS
    # After the normalization, its examples are in the statistics.
    silent = (_LOST,) if place == "after" else ()
    _assert_same(
        model,
        [
            *map(_all, range(_HELD)),
            _Batch(range(_LOST), _HELD, silent),
            *map(_others, range(_HELD + 1, _STEPS)),
        ],
    )
    seen.wait_for_all_workers()


def test_a_worker_that_has_a_share_of_the_chiefs_batches_may_be_lost(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = Seen(tfps.ClusterCoordinator(strategy))
    model = _model(strategy, (gate, None))
    how = LostWorker(cluster, gate, _LOST)
    gate.once_reached(how.happen)
    try:
        model.fit(**_of_the_chief(_HELD), verbose=0)
    finally:
        how.end()
    gate.assert_acted()
    assert int(model.optimizer.iterations) == _STEPS
    (told,) = re.findall(r"(\d+) examples? .*not trained on", caplog.text)
    num_missed, rest = divmod(int(told), _SHARE)
    assert not rest
    assert num_missed >= 1
    _assert_same(
        model,
        [
            *map(_all, range(_HELD)),
            *map(_others, range(_HELD, _HELD + num_missed)),
            # The others get whole batches from the next span on.
            *map(_all, range(_HELD + num_missed, _STEPS)),
        ],
    )
    seen.wait_for_all_workers()


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("loss", [LostWorker, StoppedWorker])
def test_a_custom_loop_goes_on_without_a_worker_that_is_lost(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    loss: type[LostWorker],
    place: str,
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    seen = Seen(coordinator)
    gates = (gate, None) if place == "before" else (None, gate)
    model = _model(strategy, gates)
    how = loss(cluster, gate, _LOST)
    gate.once_reached(how.happen)

    def train(inputs: Any, targets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            loss = tf.reduce_mean(tf.square(outputs - targets))
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(train, args=next(iterator))

    dataset_fn = _data(_HELD)["x"].dataset_fn
    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    try:
        for _ in range(_STEPS):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
    finally:
        how.end()
    gate.assert_acted()
    assert int(model.optimizer.iterations) == _STEPS
    silent = (_LOST,) if place == "after" else ()
    _assert_same(
        model,
        [
            *map(_all, range(_HELD)),
            _Batch(range(_LOST), _HELD, silent),
            *map(_others, range(_HELD + 1, _STEPS)),
        ],
    )
    seen.wait_for_all_workers()


@pytest.mark.parametrize("steps_per_execution", [1, 5])
def test_inputs_may_end_at_different_times(
    strategy: tfps.ParameterServerStrategy, steps_per_execution: int
) -> None:
    model = _model(strategy, steps_per_execution=steps_per_execution)
    lengths = (_STEPS, 7, 3)
    _fit(model, _data(lengths=lengths))
    assert int(model.optimizer.iterations) == _STEPS
    _assert_same(
        model,
        [
            _Batch([w for w in range(_WORKERS) if step < lengths[w]], step)
            for step in range(_STEPS)
        ],
    )


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Yields a function that does what Ctrl-C does.

    A process that a shell has started in the background ignores the signal.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_a_sum_waits_leaves_the_model_usable(
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    ctrl_c: Callable[[], None],
) -> None:
    model = _model(strategy, (gate, None))
    start = model.get_weights()

    def interrupt() -> None:
        ctrl_c()
        gate.open()

    gate.once_reached(interrupt)
    with pytest.raises(KeyboardInterrupt):
        _fit(model, _data(_HELD))
    gate.assert_acted()
    model.set_weights(start)
    for variable in model.optimizer.variables[2:]:
        variable.assign(tf.zeros(variable.shape))
    _fit(model, _data())
    _assert_same(model, list(map(_all, range(_STEPS))))


# Sums of the forward pass are on the first ps, those of gradients on the next.
@pytest.mark.parametrize(
    ("place", "lost"),
    [("before", 0), ("before", 1), ("after", 0), ("after", 1)],
)
@pytest.mark.parametrize("loss", [LostPs, StoppedPs])
def test_all_variables_go_back_together_when_a_ps_is_lost(
    cluster: tfps.LocalCluster,
    strategy: tfps.ParameterServerStrategy,
    gate: Gate,
    tmp_path: pathlib.Path,
    place: str,
    lost: int,
    loss: type[LostPs],
) -> None:
    """Others wait for a sum on it, or on the other one."""
    seen = Seen(tfps.ClusterCoordinator(strategy))
    gates = (gate, None) if place == "before" else (None, gate)
    model = _model(strategy, gates)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )

    def save() -> None:
        manager.save()
        manager.sync()

    how = loss(cluster, seen, lost)

    def lose() -> None:
        how.happen()
        gate.open()

    gate.once_reached(lose)
    try:
        _fit(model, _data(_HELD, is_constant=True), At({_SAVED: save}))
    finally:
        how.end()
    gate.assert_acted()
    assert seen.recovered() == [lost]
    made = int(model.optimizer.iterations)
    # Steps between the checkpoint and the loss are undone; those of the call
    # that was broken off are made again.
    assert _STEPS - (_HELD - _SAVED) <= made <= _STEPS
    _assert_same(model, [_all(0)] * made)
    seen.wait_for_all_workers()

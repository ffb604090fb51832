"""Tests of synchronous training whose workers, ps and steps fail.

Steps are exact: whatever fails, the weights are those of one process that
trains with the examples that counted.
"""

import os
import pathlib
import re
import signal
import threading
import types
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import shared_cluster
import shared_spans
import shared_training
import tensorflow as tf
from shared_gate import Gate
from shared_losses import LostPs
from shared_losses import LostWorker
from shared_losses import StoppedPs
from shared_losses import StoppedWorker
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events
from tfps_plugin.training.synchronous.span import Span

# Each test loses or delays tasks, and takes long.
pytestmark = pytest.mark.sample(cases=5, group="faults_sync")

_WORKERS, _PS = 3, 2
_LOST = 2
_SHARE = 16
_BATCH = _WORKERS * _SHARE
_STEPS = 48
# The step in which the lost worker is held up.
_HELD = 14
# The number of steps after which it comes back.
_BACK = 36
# The number of steps after which the model is saved.
_SAVED = 8
_BAD = 2.0
_PATIENCE_SECONDS = 3.0

_random = np.random.default_rng(0)
# Steps, workers, examples.
_X = _random.normal(size=(_STEPS, _WORKERS, _SHARE, 8)).astype("float32")
_Y = (_X @ _random.normal(size=(8, 1)) + 1.0).astype("float32")

Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def living_cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=_WORKERS, num_ps=_PS) as cluster:
        yield cluster


@pytest.fixture
def cluster(living_cluster: tfps.LocalCluster) -> tfps.LocalCluster:
    """Returns the cluster of the module, with all its tasks."""
    return shared_cluster.with_all_tasks(living_cluster)


Make = Callable[..., tfps.ParameterServerStrategy]


@pytest.fixture
def make(cluster: tfps.LocalCluster) -> Iterator[Make]:
    """Yields a maker of strategies; checks that no span has left anything."""
    made = []
    earlier = shared_spans.queues()

    def make(**options: Any) -> tfps.ParameterServerStrategy:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            consistency=tfps.Sync(),
            **options,
        )
        made.append(strategy)
        tfps.ClusterCoordinator(strategy, patience_seconds=_PATIENCE_SECONDS)
        return strategy

    yield make
    try:
        shared_spans.assert_nothing_is_left(earlier)
    finally:
        for strategy in made:
            tfps.ClusterCoordinator(strategy).close()


def _seen(strategy: tfps.ParameterServerStrategy) -> Seen:
    return Seen(tfps.ClusterCoordinator(strategy))


def _layers() -> list[Any]:
    return [
        keras.Input((8,)),
        keras.layers.Dense(16, "tanh"),
        keras.layers.Dense(1),
    ]


def _optimizer() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


def _clipping() -> keras.optimizers.Optimizer:
    # Parameter servers add up the norm with the help of the chief.
    return keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5)


def _model(
    strategy: tfps.ParameterServerStrategy,
    gate: Gate | None = None,
    optimizer: Callable[[], keras.optimizers.Optimizer] = _optimizer,
) -> keras.Model:
    def loss(target: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
        """Squared errors of the first column; the second may stop the step."""
        check = tf.debugging.assert_less(target[:, 1], _BAD, "bad example")
        with tf.control_dependencies([check]):
            predicted = tf.identity(predicted)
        if gate is not None:
            is_held = tf.reduce_any(target[:, 1] > 0)
            with tf.control_dependencies([gate.passing(is_held)]):
                predicted = tf.identity(predicted)
        return tf.square(predicted[:, 0] - target[:, 0])

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(_layers())
        model.compile(optimizer(), loss)
        model.optimizer.build(model.trainable_variables)
    return model


def _rows(held: int | None = None) -> Rows:
    """Returns the examples of all steps, with a column for the gate.

    Args:
        held: The step in which the lost worker is held up.
    """
    targets = np.concatenate([_Y, np.zeros_like(_Y)], axis=-1)
    if held is not None:
        targets[held, _LOST, :, 1] = 1.0
    return _X, targets


def _constant(held: int | None = None) -> Rows:
    """Returns examples that are the same in every step."""
    x, targets = _rows()
    targets = np.repeat(targets[:1], _STEPS, 0)
    if held is not None:
        targets[held, _LOST, :, 1] = 1.0
    return np.repeat(x[:1], _STEPS, 0), targets


def _of_workers(rows: Rows) -> dict[str, Any]:
    """Returns input that each worker reads for itself."""

    def dataset_fn(context: Any) -> tf.data.Dataset:
        own = tuple(part[:, context.input_pipeline_id] for part in rows)
        return tf.data.Dataset.from_tensor_slices(own).repeat()

    return {"x": tfps.DatasetCreator(dataset_fn), "steps_per_epoch": _STEPS}


def _of_the_chief(rows: Rows) -> dict[str, Any]:
    """Returns input that the chief reads and cuts."""
    x, y = (part.reshape(-1, part.shape[-1]) for part in rows)
    return {"x": x, "y": y, "batch_size": _BATCH, "shuffle": False}


_Source = Callable[[Rows], dict[str, Any]]
_both_sources = pytest.mark.parametrize("source", [_of_workers, _of_the_chief])


def _fit(model: keras.Model, data: dict[str, Any], *callbacks: Any) -> Any:
    return model.fit(**data, verbose=0, callbacks=list(callbacks)).history


def _variables(model: keras.Model) -> list[Any]:
    return [*model.trainable_variables, *shared_training.slots_of(model)]


def _weights(model: keras.Model) -> list[np.ndarray]:
    """Returns the values of the weights and of their slots."""
    return [keras.ops.convert_to_numpy(v) for v in _variables(model)]


def _alone(
    start: list[np.ndarray],
    batches: Sequence[Rows],
    optimizer: Callable[[], keras.optimizers.Optimizer] = _optimizer,
) -> list[np.ndarray]:
    """Returns the weights of one process that trains with batches."""
    with tf.device("/device:CPU:0"):
        model = keras.Sequential(_layers())
        model.compile(optimizer(), "mse")
        model.optimizer.build(model.trainable_variables)
        for variable, value in zip(_variables(model), start, strict=True):
            variable.assign(value)
        for x, targets in batches:
            model.train_on_batch(x, targets[:, :1])
        return _weights(model)


def _assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    largest = max(np.abs(each).max() for each in expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.abs(ours - theirs).max() < 1e-5 * largest


def _together(*shares: Rows) -> Rows:
    x, targets = (np.concatenate(parts) for parts in zip(*shares, strict=True))
    return x, targets


def _share(step: int, worker: int) -> Rows:
    x, targets = _rows()
    return x[step, worker], targets[step, worker]


def _all(step: int) -> Rows:
    return _together(*(_share(step, worker) for worker in range(_WORKERS)))


def _others(step: int) -> Rows:
    return _together(*(_share(step, worker) for worker in range(_LOST)))


_both_losses = pytest.mark.parametrize("loss", [LostWorker, StoppedWorker])


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list with an item for each trace of a step or an update."""
    traces: list[str] = []

    def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            traces.append(name)
            return original(*args, **kwargs)

        return noted

    for owner, name in (
        (keras.Model, "compute_loss"),
        (keras.optimizers.SGD, "update_step"),
    ):
        monkeypatch.setattr(owner, name, noting(name, getattr(owner, name)))
    return traces


@_both_losses
def test_steps_go_on_without_a_lost_worker_until_it_is_back(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    loss: type[LostWorker],
    traces: list[str],
) -> None:
    strategy = make()
    seen = _seen(strategy)
    model = _model(strategy, gate)
    start = _weights(model)
    how = loss(cluster, gate, _LOST)
    traced_before: list[int] = []

    def lose() -> None:
        traced_before.append(len(traces))
        how.happen()

    gate.once_reached(lose)
    made: list[int] = []

    def bring_back() -> None:
        made.append(int(model.optimizer.iterations))
        how.end()
        seen.wait_for(events.WorkerReadmitted)
        seen.wait_for_all_workers()

    _fit(model, _of_workers(_rows(_HELD)), At({_BACK: bring_back}))
    gate.assert_acted()
    assert {*traces} == {"compute_loss", "update_step"}
    assert traced_before == [len(traces)], "nothing is traced again"
    assert made == [_BACK]
    assert int(model.optimizer.iterations) == _STEPS
    assert [e.worker_index for e in seen.of(events.WorkerLost)] == [_LOST]
    # The worker that is back starts its input over.
    batches = [
        *map(_all, range(_HELD)),
        *map(_others, range(_HELD, _BACK)),
        *(
            _together(_others(step), _share(step - _BACK, _LOST))
            for step in range(_BACK, _STEPS)
        ),
    ]
    found = _weights(model)
    _assert_same(found, _alone(start, batches))
    with pytest.raises(AssertionError):
        _assert_same(found, _alone(start, list(map(_all, range(_STEPS)))))


@_both_losses
def test_what_a_lost_worker_had_of_the_chiefs_batches_is_told(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    caplog: pytest.LogCaptureFixture,
    loss: type[LostWorker],
) -> None:
    strategy = make()
    model = _model(strategy, gate)
    start = _weights(model)
    how = loss(cluster, gate, _LOST)
    gate.once_reached(how.happen)
    try:
        _fit(model, _of_the_chief(_rows(_HELD)))
    finally:
        how.end()
    gate.assert_acted()
    assert int(model.optimizer.iterations) == _STEPS
    (told,) = re.findall(r"(\d+) examples? .*not trained on", caplog.text)
    num_steps, rest = divmod(int(told), _SHARE)
    assert not rest
    assert num_steps >= 1
    batches = [
        *map(_all, range(_HELD)),
        *map(_others, range(_HELD, _HELD + num_steps)),
        # The others get whole batches from the next span on.
        *map(_all, range(_HELD + num_steps, _STEPS)),
    ]
    found = _weights(model)
    _assert_same(found, _alone(start, batches))
    _seen(strategy).wait_for_all_workers()


@_both_sources
def test_all_workers_are_lost_and_come_back(
    cluster: tfps.LocalCluster, make: Make, source: _Source
) -> None:
    strategy = make()
    seen = _seen(strategy)
    model = _model(strategy)
    start = _weights(model)
    started: list[int] = []

    def kill_all() -> None:
        assert int(model.optimizer.iterations) == _HELD
        for index in range(_WORKERS):
            cluster.kill("worker", index)

    def bring_back(event: events.Event) -> None:
        if isinstance(event, events.NoWorkerLeft) and not started:
            for index in range(_WORKERS):
                started.append(index)
                cluster.start("worker", index)

    seen.on_event = bring_back
    _fit(model, source(_constant()), At({_HELD: kill_all}))
    assert started == [*range(_WORKERS)]
    assert int(model.optimizer.iterations) == _STEPS
    seen.wait_for_all_workers()
    if source is _of_the_chief:
        # Whoever is back, a batch is trained on as a whole.
        _assert_same(_weights(model), _alone(start, [_all(0)] * _STEPS))


@pytest.mark.parametrize("optimizer", [_optimizer, _clipping])
@pytest.mark.parametrize("loss", [LostPs, StoppedPs])
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("lost", [0, 1])
@_both_sources
@pytest.mark.sample(cases=2)
def test_all_variables_go_back_together_when_a_ps_is_lost(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    tmp_path: pathlib.Path,
    source: _Source,
    is_held: bool,
    lost: int,
    loss: type[LostPs],
    optimizer: Callable[[], keras.optimizers.Optimizer],
) -> None:
    strategy = make()
    seen = _seen(strategy)
    model = _model(strategy, gate, optimizer)
    start = _weights(model)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )
    how = loss(cluster, seen, lost)

    def save() -> None:
        assert int(model.optimizer.iterations) == _SAVED
        manager.save()
        manager.sync()

    def lose() -> None:
        how.happen()
        # A worker that is held up has sent nothing, and then sends its part.
        gate.open()

    def lose_between_steps() -> None:
        assert int(model.optimizer.iterations) == _HELD
        lose()

    actions = {_SAVED: save}
    if is_held:
        gate.once_reached(lose)
    else:
        actions[_HELD] = lose_between_steps
    # Workers may read the batches of a call that was broken off again or not.
    examples = _rows if source is _of_the_chief else _constant
    try:
        _fit(model, source(examples(_HELD if is_held else None)), At(actions))
    finally:
        how.end()
    if is_held:
        gate.assert_acted()
    assert seen.recovered() == [lost]
    # Steps between the checkpoint and the loss are undone.
    made = int(model.optimizer.iterations)
    least = _STEPS - (_HELD - _SAVED)
    if is_held:
        # The earlier steps of the call that was broken off are made again.
        assert least <= made <= _STEPS
    else:
        assert made == least
    batches = [_all(0)] * made
    if source is _of_the_chief:
        # The batches after those of the checkpoint that are not trained on.
        undone = range(_SAVED, _SAVED + _STEPS - made)
        batches = [_all(step) for step in range(_STEPS) if step not in undone]
    _assert_same(_weights(model), _alone(start, batches, optimizer))
    seen.wait_for_all_workers()


def _fails_once(
    monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]
) -> None:
    """Lets one call of a ps fail, as TensorFlow may after it was replaced."""
    failed: list[str] = []
    apply = Span._apply

    def forgotten(*args: Any) -> None:
        text = (
            "Could not find function library for registered component function"
        )
        raise tf.errors.InternalError(None, None, text)

    def apply_or_fail(span: Span, applier: Any, *args: Any) -> None:
        if when() and not failed:
            failed.append(applier.device)
            applier = types.SimpleNamespace(
                device=applier.device, function=forgotten
            )
        apply(span, applier, *args)

    monkeypatch.setattr(Span, "_apply", apply_or_fail)


@_both_sources
def test_a_failure_of_a_ps_that_answers_takes_all_variables_back(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    source: _Source,
) -> None:
    model = _model(make())
    start = _weights(model)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )
    held: list[int] = []
    _fails_once(monkeypatch, lambda: bool(held))

    def save() -> None:
        assert int(model.optimizer.iterations) == _SAVED
        manager.save()
        manager.sync()

    def fail() -> None:
        held.append(int(model.optimizer.iterations))

    _fit(model, source(_constant()), At({_SAVED: save, _HELD: fail}))
    assert held == [_HELD]
    made = int(model.optimizer.iterations)
    assert made == _STEPS - (_HELD - _SAVED)
    _assert_same(_weights(model), _alone(start, [_all(0)] * made))


def test_without_a_checkpoint_a_failure_of_a_ps_is_the_users(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(make())
    _fails_once(monkeypatch, lambda: True)
    with pytest.raises(tf.errors.InternalError, match="component function"):
        _fit(model, _of_workers(_rows()))
    _assert_a_fit_is_right(model)


def test_without_a_checkpoint_the_loss_of_a_ps_is_the_users(
    cluster: tfps.LocalCluster, make: Make, gate: Gate
) -> None:
    model = _model(make(), gate)

    def lose() -> None:
        cluster.kill("ps", 1)
        cluster.start("ps", 1)
        gate.open()

    gate.once_reached(lose)
    with pytest.raises(errors.ParameterServerLostError):
        _fit(model, _of_workers(_rows(_HELD)))
    gate.assert_acted()
    cluster.wait_until_ready()


def _assert_a_fit_is_right(
    model: keras.Model, source: _Source = _of_the_chief
) -> None:
    """Checks that a model can be trained on, with the right numbers."""
    start = _weights(model)
    before = int(model.optimizer.iterations)
    _fit(model, source(_rows()))
    assert int(model.optimizer.iterations) == before + _STEPS
    _assert_same(_weights(model), _alone(start, list(map(_all, range(_STEPS)))))


@_both_sources
def test_an_error_of_a_step_arrives_as_itself_and_fit_goes_on_after(
    make: Make, source: _Source
) -> None:
    strategy = make()
    model = _model(strategy)
    rows = _rows()
    rows[1][_HELD, _LOST, -1, 1] = _BAD
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad example"):
        _fit(model, source(rows))
    assert int(model.optimizer.iterations) >= _HELD
    assert not tfps.ClusterCoordinator(strategy).has_error
    _assert_a_fit_is_right(model, source)


class Limited(keras.optimizers.SGD):
    """Refuses updates by a gradient that is too steep."""

    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        check = tf.debugging.assert_less(
            tf.reduce_max(tf.abs(gradient)), 1e4, "too steep"
        )
        with tf.control_dependencies([check]):
            gradient = tf.identity(gradient)
        super().update_step(gradient, variable, learning_rate)


@_both_sources
def test_an_error_of_an_update_arrives_as_itself_and_fit_goes_on_after(
    make: Make, source: _Source
) -> None:
    strategy = make()
    model = _model(strategy, None, lambda: Limited(0.05, momentum=0.9))
    x, targets = _rows()
    targets[_HELD, _LOST, :, 0] = 1e9
    with pytest.raises(tf.errors.InvalidArgumentError, match="too steep"):
        _fit(model, source((x, targets)))
    assert int(model.optimizer.iterations) <= _HELD + 1
    assert not tfps.ClusterCoordinator(strategy).has_error
    _assert_a_fit_is_right(model, source)


@_both_sources
def test_an_interrupt_leaves_no_step_behind(
    make: Make, source: _Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(make())
    # No worker has a function yet when the interrupt comes.
    are_due, is_interrupted = threading.Event(), threading.Event()
    # Keras waits for the first step.
    is_first = True
    schedule_on = tfps.ClusterCoordinator.schedule_on

    def schedule_later(*arguments: Any) -> Any:
        if not is_first:
            are_due.set()
            assert is_interrupted.wait(_PATIENCE_SECONDS)
        return schedule_on(*arguments)

    monkeypatch.setattr(tfps.ClusterCoordinator, "schedule_on", schedule_later)

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            nonlocal is_first
            if not is_first and shared_spans.threads():
                assert are_due.wait(_PATIENCE_SECONDS)
                is_interrupted.set()
                raise KeyboardInterrupt
            is_first = False

    with pytest.raises(KeyboardInterrupt):
        _fit(model, source(_rows()), Interrupt())
    assert not shared_spans.threads()
    assert int(model.optimizer.iterations) > 0
    _assert_a_fit_is_right(model, source)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Yields a function that does what Ctrl-C does.

    A process that a shell has started in the background ignores the signal.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@_both_sources
def test_an_interrupt_while_a_step_waits_leaves_the_model_usable(
    make: Make, gate: Gate, ctrl_c: Callable[[], None], source: _Source
) -> None:
    model = _model(make(), gate)

    def interrupt() -> None:
        ctrl_c()
        gate.open()

    gate.once_reached(interrupt)
    with pytest.raises(KeyboardInterrupt):
        _fit(model, source(_rows(_HELD)))
    gate.assert_acted()
    _assert_a_fit_is_right(model, source)


def _scheduled(model: keras.Model, rows: Rows) -> Callable[[int], None]:
    """Returns a custom loop: it makes so many more steps of the input."""
    strategy = model.distribute_strategy
    coordinator = tfps.ClusterCoordinator(strategy)
    iterator = iter(
        coordinator.create_per_worker_dataset(_of_workers(rows)["x"].dataset_fn)
    )

    @tf.function
    def step(iterator: Any) -> Any:
        return strategy.run(model.train_step, args=(next(iterator),))

    def loop(num_steps: int) -> None:
        for _ in range(num_steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    return loop


@_both_losses
def test_a_custom_loop_goes_on_without_a_lost_worker(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    loss: type[LostWorker],
) -> None:
    strategy = make()
    seen = _seen(strategy)
    model = _model(strategy, gate)
    start = _weights(model)
    how = loss(cluster, gate, _LOST)
    gate.once_reached(how.happen)
    loop = _scheduled(model, _rows(_HELD))
    loop(_BACK)
    gate.assert_acted()
    how.end()
    seen.wait_for(events.WorkerReadmitted)
    seen.wait_for_all_workers()
    loop(_STEPS - _BACK)
    assert int(model.optimizer.iterations) == _STEPS
    batches = [
        *map(_all, range(_HELD)),
        *map(_others, range(_HELD, _BACK)),
        *(
            # The worker that is back starts its input over.
            _together(_others(step), _share(step - _BACK, _LOST))
            for step in range(_BACK, _STEPS)
        ),
    ]
    _assert_same(_weights(model), _alone(start, batches))


@pytest.mark.parametrize("loss", [LostPs, StoppedPs])
def test_a_custom_loop_goes_on_after_the_loss_of_a_ps(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    tmp_path: pathlib.Path,
    loss: type[LostPs],
) -> None:
    strategy = make()
    seen = _seen(strategy)
    model = _model(strategy, gate)
    start = _weights(model)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )
    loop = _scheduled(model, _constant(_HELD))
    loop(_SAVED)
    manager.save()
    manager.sync()

    how = loss(cluster, seen, 1)

    def lose() -> None:
        how.happen()
        gate.open()

    gate.once_reached(lose)
    try:
        loop(_STEPS - _SAVED)
    finally:
        how.end()
    gate.assert_acted()
    assert seen.recovered() == [1]
    made = int(model.optimizer.iterations)
    # Steps between the checkpoint and the loss are undone; those of the calls
    # that were broken off are made again.
    assert _STEPS - (_HELD - _SAVED) <= made <= _STEPS
    _assert_same(_weights(model), _alone(start, [_all(0)] * made))
    seen.wait_for_all_workers()

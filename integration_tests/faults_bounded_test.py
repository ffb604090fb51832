"""Tests of bounded staleness whose workers, ps and steps fail.

Weights count the updates that they have had.
"""

import pathlib
import signal
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_cluster
import shared_counting
import shared_spans
import tensorflow as tf
from shared_counting import num_updates
from shared_gate import Gate
from shared_losses import LostPs
from shared_losses import StoppedPs
from shared_training import At
from shared_training import Seen

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events
from tfps_plugin.training.bounded.bounded_span import BoundedSpan

# Each test loses or delays tasks, and takes long.
pytestmark = pytest.mark.sample(cases=4, group="faults_bounded")

_WORKERS, _PS = 3, 2
_LOST = 2
_STEPS = 120
# The step in which the lost worker is held up.
_HELD = 3
_BOUND = 2
_SAVED = 24
_PATIENCE_SECONDS = 3.0


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
            consistency=tfps.BoundedStaleness(_BOUND),
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


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Returns the members of each span, once it has begun."""
    found: list[list[int]] = []
    start = BoundedSpan.start

    def start_and_note(span: BoundedSpan) -> None:
        found.append(span.members)
        start(span)

    monkeypatch.setattr(BoundedSpan, "start", start_and_note)
    return found


def _of_workers(held: int | None = None) -> dict[str, Any]:
    """Returns input that each worker reads for itself.

    Args:
        held: The step in which the lost worker is held up.
    """

    def dataset_fn(context: Any) -> tf.data.Dataset:
        is_lost = context.input_pipeline_id == _LOST
        return tf.data.Dataset.from_tensor_slices(
            shared_counting.steps(
                _STEPS,
                first=shared_counting.UNCHECKED,
                held=held if is_lost else None,
            )
        )

    return {"x": tfps.DatasetCreator(dataset_fn), "steps_per_epoch": _STEPS}


def _of_the_chief(held: int | None = None) -> dict[str, Any]:
    """Returns batches that the chief reads; each of one example."""
    x, y = shared_counting.steps(
        _STEPS,
        first=shared_counting.UNCHECKED,
        # Members get batches in turns.
        held=None if held is None else held * _WORKERS + _LOST,
    )
    return {
        "x": x[:, 0],
        "y": y[:, 0],
        "batch_size": 1,
        "shuffle": False,
    }


_Source = Callable[..., dict[str, Any]]
_both_sources = pytest.mark.parametrize("source", [_of_workers, _of_the_chief])


def _fit(model: keras.Model, data: dict[str, Any], *callbacks: Any) -> None:
    model.fit(**data, verbose=0, callbacks=list(callbacks))


def _counter(strategy: tfps.ParameterServerStrategy, name: str) -> int:
    return tfps.ClusterCoordinator(strategy).counters.value(name)


@_both_sources
def test_a_worker_that_is_killed_holds_nobody(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    members: list[list[int]],
    source: _Source,
) -> None:
    strategy = make()
    seen = Seen(tfps.ClusterCoordinator(strategy))
    model = shared_counting.model(strategy, gate=gate)

    def lose() -> None:
        cluster.kill("worker", _LOST)
        # Its batch may go to another worker.
        gate.open()

    gate.once_reached(lose)
    _fit(model, source(_HELD))
    gate.assert_acted()
    # Nothing of its last step was applied, and others have made it.
    assert num_updates(model) == [_STEPS] * _PS
    assert int(model.optimizer.iterations) == _STEPS
    assert _counter(strategy, "steps_done") == _STEPS
    assert _counter(strategy, "steps_again") == 1
    assert members[0] == [*range(_WORKERS)]
    assert members[-1] == [*range(_LOST)]
    # Once back, it is a member again.
    cluster.start("worker", _LOST, wait=True)
    seen.wait_for(events.WorkerReadmitted)
    seen.wait_for_all_workers()
    _fit(model, source())
    assert members[-1] == [*range(_WORKERS)]
    assert num_updates(model) == [2 * _STEPS] * _PS


def test_a_worker_that_hangs_holds_the_others_until_it_is_given_up(
    cluster: tfps.LocalCluster, make: Make, gate: Gate
) -> None:
    strategy = make()
    seen = Seen(tfps.ClusterCoordinator(strategy))
    model = shared_counting.model(strategy, gate=gate)
    process = cluster.process("worker", _LOST)
    expected = [_HELD + _LOST * (_HELD + _BOUND + 1)] * _PS
    reached: list[list[int]] = []

    def stop() -> None:
        process.send_signal(signal.SIGSTOP)
        shared_counting.wait_until(lambda: num_updates(model) == expected)
        # They wait there, until the worker is given up.
        while not seen.of(events.WorkerLost):
            found = num_updates(model)
            if not seen.of(events.WorkerLost):
                reached.append(found)

    gate.once_reached(stop)
    try:
        _fit(model, _of_workers(_HELD))
    finally:
        process.send_signal(signal.SIGCONT)
    gate.assert_acted()
    assert reached
    assert all(found == expected for found in reached[:-1]), reached
    assert num_updates(model) == [_STEPS] * _PS
    assert _counter(strategy, "largest_lead") == _BOUND
    # Its step goes on, with queues that are gone.
    gate.open()
    seen.wait_for(events.WorkerReadmitted)
    seen.wait_for_all_workers()
    _fit(model, _of_workers())
    # The step that was held up may have been applied late.
    assert all(
        2 * _STEPS <= number <= 2 * _STEPS + 1 for number in num_updates(model)
    )


@pytest.mark.parametrize("restore", ["lost", "consistent"])
@pytest.mark.parametrize("loss", [LostPs, StoppedPs])
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("is_held", [False, True])
@_both_sources
@pytest.mark.sample(cases=2)
def test_training_goes_on_when_a_ps_is_back(
    cluster: tfps.LocalCluster,
    make: Make,
    gate: Gate,
    tmp_path: pathlib.Path,
    source: _Source,
    is_held: bool,
    lost: int,
    loss: type[LostPs],
    restore: Any,
) -> None:
    strategy = make(recovery=tfps.RecoveryOptions(restore=restore))
    seen = Seen(tfps.ClusterCoordinator(strategy))
    model = shared_counting.model(strategy, gate=gate)
    manager = tfps.CheckpointManager(
        tfps.Checkpoint(model=model), tmp_path / "saved"
    )

    def save() -> None:
        assert int(model.optimizer.iterations) == _SAVED
        manager.save()
        manager.sync()

    how = loss(cluster, seen, lost)

    def lose() -> None:
        how.happen()
        gate.open()

    def lose_between_steps() -> None:
        # The steps that come before have been made: this waits for them.
        assert num_updates(model) == [2 * _SAVED] * _PS
        lose()

    actions = {_SAVED: save}
    held = None
    if is_held:
        held = 2 * _SAVED // _WORKERS
        gate.once_reached(lose)
    else:
        actions[2 * _SAVED] = lose_between_steps
    try:
        _fit(model, source(held), At(actions))
    finally:
        how.end()
    if is_held:
        gate.assert_acted()
    assert seen.recovered() == [lost]
    assert _counter(strategy, "steps_done") == _STEPS
    # Calls may begin more than once before workers have found the ps again.
    again = _counter(strategy, "steps_again")
    updates = num_updates(model)
    iterations = int(model.optimizer.iterations)
    if restore == "lost":
        # The other ps has lost nothing.
        assert _STEPS <= updates[1 - lost] <= _STEPS + again
        counter = model.optimizer.iterations.value
        assert iterations >= _STEPS or f"task:{lost}" in counter.device
    else:
        # The other ps has gone back with it.
        assert abs(updates[0] - updates[1]) <= again
        if not is_held:
            assert updates[1 - lost] <= _STEPS - _SAVED + again
    # What it has had since the checkpoint is lost.
    assert _SAVED < updates[lost] <= _STEPS + again
    seen.wait_for_all_workers()
    _fit(model, source())
    assert _counter(strategy, "steps_done") == 2 * _STEPS


def test_without_a_checkpoint_the_loss_of_a_ps_is_the_users(
    cluster: tfps.LocalCluster, make: Make, gate: Gate
) -> None:
    model = shared_counting.model(make(), gate=gate)

    def lose() -> None:
        cluster.kill("ps", 1)
        cluster.start("ps", 1)
        gate.open()

    gate.once_reached(lose)
    with pytest.raises(errors.ParameterServerLostError):
        _fit(model, _of_workers(_HELD))
    gate.assert_acted()
    cluster.wait_until_ready()


@_both_sources
def test_an_interrupt_leaves_the_model_usable(
    make: Make, source: _Source
) -> None:
    model = shared_counting.model(make())

    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch > _STEPS // 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _fit(model, source(), Interrupt())
    assert not shared_spans.threads()
    before = num_updates(model)
    assert before[0] == before[1]
    _fit(model, source())
    np.testing.assert_array_equal(num_updates(model), np.array(before) + _STEPS)


def test_an_error_of_a_step_arrives_as_itself_and_fit_goes_on_after(
    make: Make,
) -> None:
    strategy = make()
    model = shared_counting.model(strategy, num_workers=2, max_staleness=0)

    def of_worker(context: Any) -> tf.data.Dataset:
        x, y = shared_counting.steps(_STEPS, first=shared_counting.UNCHECKED)
        if context.input_pipeline_id == _LOST:
            # No step can have seen so many others.
            y[_HELD, 0, 0] = 10.0 * _STEPS
        return tf.data.Dataset.from_tensor_slices((x, y))

    with pytest.raises(tf.errors.InvalidArgumentError, match="bound is broken"):
        _fit(
            model,
            {
                "x": tfps.DatasetCreator(of_worker),
                "steps_per_epoch": _STEPS,
            },
        )
    assert not shared_spans.threads()
    assert not tfps.ClusterCoordinator(strategy).has_error
    before = num_updates(model)
    _fit(model, _of_workers())
    np.testing.assert_array_equal(num_updates(model), np.array(before) + _STEPS)

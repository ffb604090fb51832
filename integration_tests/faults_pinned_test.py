"""Tests of workers that die while steps of others need them."""

import logging
import pathlib
import signal
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import shared_halves
import tensorflow as tf
from shared_training import At

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.monitoring import events

# Each test loses or delays tasks, and takes long.
pytestmark = pytest.mark.sample(cases=2, group="faults_pinned")

_PINNED = 1
_CONSISTENCIES: dict[str, Callable[[], Any]] = {
    "async": lambda: tfps.Async(),
    "sync": lambda: tfps.Sync(),
    "bounded": lambda: tfps.BoundedStaleness(2),
}
_EPOCHS = 4
# More than are trained in the time of a test.
_MANY_EPOCHS = 1000
_PROMPT_SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[tfps.LocalCluster]:
    with tfps.LocalCluster(num_workers=3, num_ps=2) as cluster:
        yield cluster


def _start_when_lost(
    coordinator: tfps.ClusterCoordinator, start: Any
) -> list[events.Event]:
    """Has a worker come back once it was given up; returns what happens."""
    seen: list[events.Event] = []

    def on_event(event: events.Event) -> None:
        seen.append(event)
        if isinstance(event, events.WorkerLost):
            start()

    coordinator.events.subscribe(on_event)
    return seen


@pytest.mark.parametrize("name", _CONSISTENCIES)
def test_steps_wait_for_a_worker_that_they_need(
    cluster: tfps.LocalCluster, name: str
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver,
        consistency=_CONSISTENCIES[name](),
        scheduling=tfps.SchedulingOptions(steps_per_closure=2),
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    seen = _start_when_lost(
        coordinator, lambda: cluster.start("worker", _PINNED)
    )
    with strategy.scope():
        model = shared_halves.halves(None, f"/job:worker/task:{_PINNED}")
    shared_halves.fit(model, epochs=1)
    kill = At({2: lambda: cluster.kill("worker", _PINNED)})
    history = model.fit(
        shared_halves.FEATURES,
        shared_halves.TARGETS,
        batch_size=4,
        shuffle=False,
        epochs=_EPOCHS,
        callbacks=[kill],
        verbose=0,
    ).history
    assert [e.worker_index for e in _of(seen, events.WorkerLost)] == [_PINNED]
    assert _of(seen, events.WorkerReadmitted)
    assert len(history["loss"]) == _EPOCHS
    assert history["loss"][-1] < history["loss"][0]
    assert coordinator.counters.value("closures_failed") == 0
    coordinator.close()


def _of(seen: list[events.Event], kind: type[Any]) -> list[Any]:
    return [event for event in seen if isinstance(event, kind)]


@pytest.mark.parametrize("hangs", [False, True])
def test_functions_that_do_not_need_it_go_on(
    cluster: tfps.LocalCluster, caplog: pytest.LogCaptureFixture, hangs: bool
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy, patience_seconds=2.0)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function
    def pinned(x: tf.Tensor) -> tf.Tensor:
        with tf.device(f"/job:worker/task:{_PINNED}"):
            x = tf.square(x)
        return x + 1.0

    @tf.function
    def free(x: tf.Tensor) -> None:
        total.assign_add(x)

    def schedule(function: Any, number: int) -> list[tfps.RemoteValue]:
        return [
            coordinator.schedule(function, args=(tf.constant(2.0),))
            for _ in range(number)
        ]

    schedule(pinned, 6)
    schedule(free, 6)
    coordinator.join()
    process = cluster.process("worker", _PINNED)
    if hangs:
        process.send_signal(signal.SIGSTOP)
    else:
        cluster.kill("worker", _PINNED)
    with caplog.at_level(logging.WARNING):
        waiting = schedule(pinned, 6)
        # They end although those before them wait.
        for value in schedule(free, 6):
            value.get()
        assert not all(value.is_ready() for value in waiting)
        if hangs:
            process.send_signal(signal.SIGCONT)
        else:
            cluster.start("worker", _PINNED)
        coordinator.join()
    assert [value.fetch() for value in waiting] == [5.0] * 6
    assert total.numpy() == 24.0
    assert any(
        f"in part on worker {_PINNED} wait" in text for text in caplog.messages
    )
    coordinator.close()


def test_a_worker_that_stays_away_is_named(
    cluster: tfps.LocalCluster,
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(
        strategy, no_worker_timeout_seconds=1.0
    )

    @tf.function
    def pinned(x: tf.Tensor) -> tf.Tensor:
        with tf.device(f"/job:worker/task:{_PINNED}"):
            return tf.square(x)

    coordinator.schedule(pinned, args=(tf.constant(2.0),))
    coordinator.join()
    cluster.kill("worker", _PINNED)
    coordinator.schedule(pinned, args=(tf.constant(2.0),))
    with pytest.raises(errors.WorkerLostError, match="waited for worker 1"):
        coordinator.join()
    cluster.start("worker", _PINNED)
    coordinator.close()


def test_variables_placed_by_hand_are_restored_where_they_were(
    cluster: tfps.LocalCluster, tmp_path: pathlib.Path
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    with strategy.scope(), tf.device("/job:ps/task:1"):
        model = shared_halves.halves(None, None)
    shared_halves.fit(model, epochs=1)
    manager = tfps.CheckpointManager(tfps.Checkpoint(model=model), tmp_path)
    manager.save()
    manager.sync()
    saved = model.get_weights()
    cluster.kill("ps", 1)
    cluster.start("ps", 1)
    coordinator = tfps.ClusterCoordinator(strategy)

    @tf.function
    def norms() -> list[tf.Tensor]:
        return [tf.norm(weight.value) for weight in model.weights]

    found = coordinator.schedule(norms).fetch()
    np.testing.assert_allclose(
        found, [np.linalg.norm(weight) for weight in saved], rtol=1e-5
    )
    variables = [*model.weights, *model.optimizer.variables]
    assert all("task:1" in v.value.device for v in variables)
    shared_halves.fit(model, epochs=1)
    coordinator.close()


def _add_again(
    cluster: tfps.LocalCluster, coordinator: tfps.ClusterCoordinator
) -> None:
    """Has the removed worker belong to the cluster again."""
    process = cluster.process("worker", _PINNED)
    assert process.wait(_PROMPT_SECONDS) == 0
    cluster.start("worker", _PINNED)
    address = cluster.cluster_spec.worker_addresses[_PINNED]
    assert coordinator.add_worker(address) == _PINNED


@pytest.mark.parametrize("name", _CONSISTENCIES)
def test_training_ends_when_a_worker_is_removed_that_it_names(
    cluster: tfps.LocalCluster, name: str
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=_CONSISTENCIES[name]()
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        model = shared_halves.halves(None, f"/job:worker/task:{_PINNED}")
    remove = At({2: lambda: coordinator.remove_worker(_PINNED)})
    with pytest.raises(errors.PlacementError, match=f"worker {_PINNED}, which"):
        model.fit(
            shared_halves.FEATURES,
            shared_halves.TARGETS,
            batch_size=4,
            epochs=_MANY_EPOCHS,
            callbacks=[remove],
            verbose=0,
        )
    assert _PINNED not in coordinator.worker_indices
    # Others go on with what does not name it.
    with strategy.scope():
        other = shared_halves.halves(None, None)
    shared_halves.fit(other, epochs=1)
    with strategy.scope():
        again = shared_halves.halves(None, f"/job:worker/task:{_PINNED}")
    with pytest.raises(errors.PlacementError, match=f"no worker {_PINNED}"):
        shared_halves.fit(again, epochs=1)
    _add_again(cluster, coordinator)
    shared_halves.fit(model, epochs=1)
    coordinator.close()


@pytest.mark.parametrize("name", ["async", "sync"])
def test_a_loop_ends_when_a_worker_is_removed_that_it_names(
    cluster: tfps.LocalCluster, name: str
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=_CONSISTENCIES[name]()
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(
            0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def new_step(device: str | None) -> Any:
        def on_worker(x: tf.Tensor) -> tf.Tensor:
            with tf.device(device):
                square = tf.square(x)
            total.assign_add(square)
            return square

        return tf.function(lambda x: strategy.run(on_worker, args=(x,)))

    step, free = new_step(f"/job:worker/task:{_PINNED}"), new_step(None)

    def schedule(function: Any, number: int) -> list[tfps.RemoteValue]:
        return [
            coordinator.schedule(function, args=(tf.constant(1.0),))
            for _ in range(number)
        ]

    results = schedule(step, 6)
    coordinator.join()
    coordinator.remove_worker(_PINNED)

    def go_on() -> None:
        schedule(step, 6)
        coordinator.join()

    # A function that was traced is called; one that is traced anew, refused.
    with pytest.raises(errors.PlacementError, match=f"worker {_PINNED}"):
        go_on()
    schedule(free, 6)
    coordinator.join()
    # Results that were on the worker are with the chief.
    assert len(coordinator.fetch(results)) == 6
    _add_again(cluster, coordinator)
    schedule(step, 6)
    coordinator.join()
    assert total.numpy() == 18.0
    coordinator.close()

"""Tests of workers that are added and removed while a program trains."""

import pathlib
import signal
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import shared_descriptions
import shared_rows
import tensorflow as tf
from shared_gate import Gate

import tfps_plugin as tfps
from tfps_plugin.coordinator.elastic import follower
from tfps_plugin.coordinator.members.membership import Membership

_SPLITS = 40
_ROWS = 40 * 48
_ROWS_OF_LOOP = 480
_JOIN_SECONDS = 60.0
_EXIT_SECONDS = 20.0
# A worker that nothing holds leaves within a second.
_HELD_SECONDS = 3.0

_CONSISTENCIES: dict[str, tfps.Async | tfps.Sync | tfps.BoundedStaleness] = {
    "async": tfps.Async(),
    "local steps": tfps.Async(local_steps=3),
    "bounded": tfps.BoundedStaleness(2),
    "sync": tfps.Sync(),
    "backup": tfps.Sync(backup_workers=1),
}


@pytest.fixture
def cluster() -> Iterator[tfps.LocalCluster]:
    """Yields a cluster of its own, to which a test adds workers."""
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        yield cluster


class Changes(keras.callbacks.Callback):
    """Adds a worker, waits until it takes part, and removes another."""

    def __init__(
        self, cluster: tfps.LocalCluster, coordinator: tfps.ClusterCoordinator
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._coordinator = coordinator
        self._has_joined = threading.Event()
        self.added = -1

    def _note(self, event: tfps.events.Event) -> None:
        if isinstance(event, tfps.events.WorkerJoined):
            self._has_joined.set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 40 and self.added < 0:
            unsubscribe = self._coordinator.events.subscribe(self._note)
            address = self._cluster.add_worker()
            self.added = self._coordinator.add_worker(address)
            assert self._has_joined.wait(_JOIN_SECONDS)
            unsubscribe()
        if batch == 100 and 0 in self._coordinator.worker_indices:
            self._coordinator.remove_worker(0)


def _of_pipelines(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns the batches of one of any number of pipelines."""
    return shared_rows.numbers(0, _ROWS).shard(
        context.num_input_pipelines, context.input_pipeline_id
    )


_Trained = tuple[
    tfps.ClusterCoordinator, keras.Model, Any, dict[str, list[float]]
]


@pytest.fixture
def trained(
    cluster: tfps.LocalCluster,
) -> Iterator[Callable[..., _Trained]]:
    """Yields a function that trains for an epoch while workers change."""
    coordinators = []

    def train(consistency: Any, data: Any, **options: Any) -> _Trained:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver, consistency=consistency
        )
        coordinator = tfps.ClusterCoordinator(strategy)
        coordinators.append(coordinator)
        model, steps = shared_rows.model(strategy, _ROWS)
        with strategy.scope():
            mean = keras.metrics.MeanMetricWrapper(
                lambda y_true, _: tf.cast(y_true, tf.float32), "mean"
            )
            model.compile(model.optimizer, model.loss, metrics=[mean])
        changes = Changes(cluster, coordinator)
        history = model.fit(
            callbacks=[changes], verbose=0, **data, **options
        ).history
        assert changes.added == 2
        assert coordinator.worker_indices == (1, 2)
        assert cluster.process("worker", 0).wait(_EXIT_SECONDS) == 0
        return coordinator, model, steps, history

    yield train
    for coordinator in coordinators:
        coordinator.close()


def _splits() -> dict[str, Any]:
    return {"x": shared_rows.of_splits(_SPLITS, _ROWS)}


def _batches_of_the_chief() -> dict[str, Any]:
    rows = np.arange(_ROWS)
    return {"x": rows, "y": rows, "batch_size": shared_rows.BATCH}


@pytest.mark.parametrize("data", [_splits, _batches_of_the_chief])
@pytest.mark.parametrize("name", _CONSISTENCIES)
def test_every_row_is_trained_on_once_while_workers_come_and_go(
    trained: Callable[..., _Trained],
    name: str,
    data: Callable[[], dict[str, Any]],
) -> None:
    _, model, steps, history = trained(_CONSISTENCIES[name], data())
    counts = shared_rows.counts(model)
    assert int(steps.read_all()[-1]) > 0
    if name == "backup":
        # A step does without the gradients of one worker.
        assert counts.max() == 1
        return
    np.testing.assert_array_equal(counts, 1)
    # What the worker has counted that has left is kept.
    np.testing.assert_allclose(history["mean"], [(_ROWS - 1) / 2], rtol=1e-6)
    # The next epoch has the other workers.
    model.fit(verbose=0, **data())
    np.testing.assert_array_equal(shared_rows.counts(model), 2)


@pytest.mark.parametrize("name", ["async", "sync"])
def test_shares_of_workers_are_handed_on_and_then_shared_out_anew(
    trained: Callable[..., _Trained], name: str
) -> None:
    data = {"x": tfps.DatasetCreator(_of_pipelines)}
    _, model, steps, history = trained(_CONSISTENCIES[name], data, epochs=2)
    np.testing.assert_array_equal(shared_rows.counts(model), 2)
    np.testing.assert_allclose(
        history["mean"], [(_ROWS - 1) / 2] * 2, rtol=1e-6
    )
    # In the second epoch, the worker that was added has a share.
    assert int(steps.read_all()[-1]) > 0


@pytest.mark.parametrize("consistency", [tfps.Async(), tfps.Sync()], ids=str)
def test_a_custom_loop_goes_on_while_workers_come_and_go(
    cluster: tfps.LocalCluster,
    consistency: Any,
    request: pytest.FixtureRequest,
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=consistency
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    request.addfinalizer(coordinator.close)
    model, steps = shared_rows.model(strategy, _ROWS)

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        def on_batch(batch: Any) -> tf.Tensor:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model.loss(y, model(x, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return tf.reduce_sum(x)

        return strategy.run(on_batch, args=(next(iterator),))

    def endless(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return _of_pipelines(context).repeat()

    batches = iter(coordinator.create_per_worker_dataset(endless))

    def train(number: int) -> list[Any]:
        return [
            coordinator.schedule(step, args=(batches,)) for _ in range(number)
        ]

    results = train(20)
    joined = threading.Event()

    def note(event: tfps.events.Event) -> None:
        if isinstance(event, tfps.events.WorkerJoined):
            joined.set()

    coordinator.events.subscribe(note)
    assert coordinator.add_worker(cluster.add_worker()) == 2
    assert joined.wait(_JOIN_SECONDS)
    results += train(20)
    coordinator.remove_worker(0)
    results += train(20)
    coordinator.join()
    assert cluster.process("worker", 0).wait(_EXIT_SECONDS) == 0
    assert int(model.optimizer.iterations) == 60
    assert int(steps.read_all()[-1]) > 0
    # Also results of the worker that has left.
    seen = sum(
        np.sum(value if isinstance(consistency, tfps.Async) else value.values)
        for value in coordinator.fetch(results)
    )
    if isinstance(consistency, tfps.Async):
        trained = shared_rows.counts(model) @ np.arange(_ROWS)
        assert seen == trained


def test_a_worker_has_a_share_of_endless_input_at_once(
    trained: Callable[..., _Trained],
) -> None:
    def endless(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return _of_pipelines(context).repeat()

    data = {"x": tfps.DatasetCreator(endless)}
    _, model, steps, _ = trained(tfps.Async(), data, steps_per_epoch=200)
    assert int(steps.read_all()[-1]) > 0
    assert int(model.optimizer.iterations) == 200


def test_a_step_of_one_worker_is_traced_again_for_two(
    request: pytest.FixtureRequest,
) -> None:
    with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver, consistency=tfps.Sync()
        )
        coordinator = tfps.ClusterCoordinator(strategy)
        request.addfinalizer(coordinator.close)
        model, steps = shared_rows.model(strategy, _ROWS)

        def add(epoch: int, logs: Any) -> None:
            if not epoch:
                coordinator.add_worker(cluster.add_worker())

        add_one = keras.callbacks.LambdaCallback(on_epoch_end=add)
        model.fit(**_splits(), epochs=3, callbacks=[add_one], verbose=0)
        np.testing.assert_array_equal(shared_rows.counts(model), 3)
        assert strategy.num_replicas_in_sync == 2
        assert int(steps.read_all()[1]) > 0
        with pytest.raises(tfps.errors.ClusterConfigurationError):
            coordinator.add_worker(cluster.cluster_spec.worker_addresses[1])
        coordinator.remove_worker(0)
        with pytest.raises(ValueError, match="last worker"):
            coordinator.remove_worker(1)


class Preemption(keras.callbacks.Callback):
    """Tells a worker to end, and starts it again when it has ended."""

    def __init__(self, cluster: tfps.LocalCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 60:
            process = self._cluster.process("worker", 0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(_EXIT_SECONDS) == 0
            self._cluster.start("worker", 0)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        *[(name, None) for name in _CONSISTENCIES],
        *[(name, "/job:worker/task:0") for name in _CONSISTENCIES],
    ],
)
def test_a_worker_that_is_preempted_loses_nothing(
    cluster: tfps.LocalCluster,
    name: str,
    device: str | None,
    request: pytest.FixtureRequest,
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=_CONSISTENCIES[name]
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    request.addfinalizer(coordinator.close)
    model, _ = shared_rows.model(strategy, _ROWS, device)
    preemption = Preemption(cluster)
    model.fit(**_splits(), callbacks=[preemption], verbose=0)
    counts = shared_rows.counts(model)
    assert counts.max() == 1
    # A step with backup workers does without the gradients of one worker.
    assert name == "backup" or counts.min() == 1
    assert coordinator.counters.value("workers_left") == 1
    assert coordinator.counters.value("workers_lost") == 0
    assert coordinator.counters.value("steps_again") == 0
    assert coordinator.counters.value("closures_retried") == 0


@pytest.mark.parametrize("name", ["async", "sync", "backup"])
def test_a_preempted_worker_loses_nothing_of_a_custom_loop(
    cluster: tfps.LocalCluster, name: str, request: pytest.FixtureRequest
) -> None:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, consistency=_CONSISTENCIES[name]
    )
    coordinator = tfps.ClusterCoordinator(strategy)
    request.addfinalizer(coordinator.close)
    model, _ = shared_rows.model(strategy, _ROWS_OF_LOOP)

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        def on_batch(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model.loss(x, model(x, training=True)))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return tf.reduce_sum(x)

        return strategy.run(on_batch, args=(x,))

    preemption = Preemption(cluster)
    for number, (x, _) in enumerate(shared_rows.numbers(0, _ROWS_OF_LOOP)):
        coordinator.schedule(step, args=(x,))
        preemption.on_train_batch_end(number)
    coordinator.join()
    np.testing.assert_array_equal(shared_rows.counts(model), 1)
    assert int(model.optimizer.iterations) == _ROWS_OF_LOOP // shared_rows.BATCH
    assert coordinator.counters.value("workers_left") == 1
    assert coordinator.counters.value("workers_lost") == 0
    assert coordinator.counters.value("closures_retried") == 0


def test_a_preempted_worker_ends_what_others_have_begun_on_it(
    cluster: tfps.LocalCluster, gate: Gate, request: pytest.FixtureRequest
) -> None:
    strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
    coordinator = tfps.ClusterCoordinator(strategy)
    request.addfinalizer(coordinator.close)
    with strategy.scope():
        total = tf.Variable(0)
    own_index = coordinator.create_per_worker_dataset(
        lambda context: tf.data.Dataset.from_tensors(
            context.input_pipeline_id
        ).repeat()
    )

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        is_held = tf.equal(next(iterator), 1)
        with tf.control_dependencies([total.assign_add(1)]):
            passed = gate.passing(is_held)
        with (
            tf.control_dependencies([passed]),
            tf.device("/job:worker/task:0"),
        ):
            return tf.random.uniform([])

    has_left = threading.Event()

    def note(event: tfps.events.Event) -> None:
        if isinstance(event, tfps.events.WorkerLeft):
            has_left.set()

    coordinator.events.subscribe(note)

    process = cluster.process("worker", 0)

    def preempt() -> None:
        gate.let_others_pass()
        process.send_signal(signal.SIGTERM)
        left_too_soon = has_left.wait(_HELD_SECONDS)
        gate.open()
        assert not left_too_soon

    gate.once_reached(preempt)
    iterator = iter(own_index)
    results = [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
    assert has_left.wait(_JOIN_SECONDS)
    assert process.wait(_EXIT_SECONDS) == 0
    # What has not begun waits for it.
    cluster.start("worker", 0)
    coordinator.join()
    gate.assert_acted()
    assert total.numpy() == 20
    assert coordinator.counters.value("closures_retried") == 0
    assert coordinator.counters.value("workers_lost") == 0
    # Also those that were on the worker that has left.
    assert len(coordinator.fetch(results)) == 20


def test_a_worker_with_fewer_replicas_is_not_taken_in(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    refused: list[tuple[int, str]] = []
    was_refused = threading.Event()
    no_answer = Membership.no_answer

    def note(membership: Membership, worker_index: int, reason: str) -> None:
        no_answer(membership, worker_index, reason)
        refused.append((worker_index, reason))
        was_refused.set()

    monkeypatch.setattr(Membership, "no_answer", note)
    with (
        tfps.LocalCluster(1, 1, logical_cpus_per_worker=2) as cluster,
        # Its worker 1 serves under the next index of the other cluster.
        tfps.LocalCluster(2, 1) as plain,
    ):
        strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
        coordinator = tfps.ClusterCoordinator(strategy)
        request.addfinalizer(coordinator.close)
        assert strategy.replica_devices == ("/device:CPU:0", "/device:CPU:1")
        address = plain.cluster_spec.worker_addresses[1]
        assert coordinator.add_worker(address) == 1
        assert was_refused.wait(_JOIN_SECONDS)
        assert set(refused) == {
            (
                1,
                "it lacks /device:CPU:1, which replicas of a worker compute on",
            )
        }
        (_, added) = coordinator.presences()
        assert not added.is_present
        assert added.reason == refused[0][1]
        # The other one trains on.
        model, steps = shared_rows.model(strategy, _ROWS)
        model.fit(**_splits(), verbose=0)
        assert shared_rows.counts(model).min() == 1
        assert int(steps.read_all()[1]) == 0
        coordinator.remove_worker(1)
        assert coordinator.worker_indices == (0,)


def test_a_worker_without_a_chief_ends_at_once() -> None:
    with tfps.LocalCluster(num_workers=1, num_ps=1) as cluster:
        process = cluster.process("worker", 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_EXIT_SECONDS) == 128 + signal.SIGTERM


@pytest.mark.parametrize("source", ["file", "TF_CONFIG", "pods"])
def test_a_description_that_changes_is_followed(
    cluster: tfps.LocalCluster,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
    request: pytest.FixtureRequest,
) -> None:
    options: dict[str, Any] = {}
    if source == "file":
        path = tmp_path / "cluster.json"
        monkeypatch.setenv("TFPS_CLUSTER_FILE", str(path))
        describe_jobs = shared_descriptions.of_file(path)
    else:
        # Restored in the end.
        monkeypatch.setenv("TF_CONFIG", "")
        resolver, describe_jobs = (
            shared_descriptions.of_tf_config()
            if source == "TF_CONFIG"
            else shared_descriptions.of_pods()
        )
        options = {"cluster_resolver": resolver, "elastic": True}

    def describe(num_workers: int) -> None:
        jobs = cluster.cluster_spec.as_dict()
        describe_jobs({**jobs, "worker": jobs["worker"][:num_workers]})

    describe(2)
    monkeypatch.setattr(follower, "INTERVAL_SECONDS", 0.2)
    strategy = tfps.ParameterServerStrategy(**options)
    assert strategy.elastic
    coordinator = tfps.ClusterCoordinator(strategy)
    request.addfinalizer(coordinator.close)
    has_changed = threading.Event()

    def note(event: tfps.events.Event) -> None:
        if isinstance(event, tfps.events.WorkerJoined | tfps.events.WorkerLeft):
            has_changed.set()

    coordinator.events.subscribe(note)

    def change(batch: int, logs: Any) -> None:
        if batch in (40, 120):
            has_changed.clear()
            if batch == 40:
                cluster.add_worker()
            describe(3 if batch == 40 else 1)
            assert has_changed.wait(_JOIN_SECONDS)

    model, _ = shared_rows.model(strategy, _ROWS)
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=change)
    model.fit(**_splits(), callbacks=[callback], verbose=0)
    np.testing.assert_array_equal(shared_rows.counts(model), 1)
    for index in (1, 2):
        assert cluster.process("worker", index).wait(_EXIT_SECONDS) == 0
    assert coordinator.worker_indices == (0,)
    # A second strategy finds the cluster as it is described now.
    again = tfps.ParameterServerStrategy(**options)
    assert again.session is strategy.session

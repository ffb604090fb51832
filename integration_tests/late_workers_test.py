"""Tests of a job that starts without one of its workers, which joins later."""

import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

_ROWS_OF_SPLIT = 48
_SPLITS = 40
_ROWS = _SPLITS * _ROWS_OF_SPLIT
_ROWS_OF_WORKER = _ROWS // 2
_BATCH = 4
_JOIN_SECONDS = 60.0


@pytest.fixture
def strategy(
    cluster: tfps.LocalCluster,
) -> Iterator[tfps.ParameterServerStrategy]:
    """Yields a strategy that has started with worker 0 alone."""
    cluster.kill("worker", 1)
    # Connecting to other tasks ends an existing connection.
    fewer = cluster.cluster_spec.as_dict()
    fewer["worker"] = fewer["worker"][:1]
    tfps.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(fewer), task_type="chief", task_id=0
        )
    )
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, startup=tfps.StartupOptions(min_workers=1)
    )
    yield strategy
    tfps.ClusterCoordinator(strategy).close()


class Join(keras.callbacks.Callback):
    """Starts the missing worker, and waits until it takes part."""

    def __init__(
        self, cluster: tfps.LocalCluster, coordinator: tfps.ClusterCoordinator
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._coordinator = coordinator
        self.joined: list[tfps.events.WorkerJoined] = []
        self._has_joined = threading.Event()

    def _note(self, event: tfps.events.Event) -> None:
        if isinstance(event, tfps.events.WorkerJoined):
            self.joined.append(event)
            self._has_joined.set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 40:
            unsubscribe = self._coordinator.events.subscribe(self._note)
            self._cluster.start("worker", 1)
            assert self._has_joined.wait(_JOIN_SECONDS)
            unsubscribe()


def _numbers(begin: Any, size: Any) -> tf.data.Dataset:
    """Returns the numbers of some rows, as inputs and as targets."""
    numbers = tf.data.Dataset.range(_ROWS).skip(begin).take(size).batch(_BATCH)
    return tf.data.Dataset.zip((numbers, numbers))


def _of_split(number: tf.Tensor) -> tf.data.Dataset:
    return _numbers(number * _ROWS_OF_SPLIT, _ROWS_OF_SPLIT)


def _of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return _numbers(
        context.input_pipeline_id * _ROWS_OF_WORKER, _ROWS_OF_WORKER
    )


def _counting_model(
    strategy: tfps.ParameterServerStrategy,
) -> tuple[keras.Model, Any]:
    """Returns a model that counts its trainings on rows, and workers' steps."""
    with strategy.scope():
        steps = tf.Variable(0, per_worker_variable=True)
        model = keras.Sequential(
            [
                keras.Input((), dtype="int64"),
                keras.layers.Embedding(_ROWS, 1, "zeros"),
            ]
        )

        def loss(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
            steps.assign_add(1)
            return -p[:, 0]

        # The loss is the mean over a batch.
        model.compile(keras.optimizers.SGD(float(_BATCH)), loss)
    return model, steps


def _assert_trained(model: keras.Model, times: int) -> None:
    """Checks how often every row was trained on, and that steps count once."""
    counts = model.layers[0].embeddings.numpy()[:, 0]
    np.testing.assert_array_equal(counts, times)
    assert int(model.optimizer.iterations) == times * _ROWS // _BATCH


def _steps(variable: Any) -> list[int]:
    return [int(value) for value in variable.read_all()]


def test_the_others_begin_and_it_takes_part_from_when_it_joins(
    cluster: tfps.LocalCluster, strategy: tfps.ParameterServerStrategy
) -> None:
    coordinator = tfps.ClusterCoordinator(strategy)
    assert list(coordinator.absent_workers) == [1]
    batches = iter(coordinator.create_per_worker_dataset(_of_worker))

    @tf.function
    def first_number(iterator: Any) -> tf.Tensor:
        numbers, _ = next(iterator)
        return numbers[0]

    def next_number() -> int:
        return coordinator.schedule(first_number, args=(batches,)).fetch()

    assert [next_number() for _ in range(3)] == [0, _BATCH, 2 * _BATCH]

    # The present worker reads the share of the missing one, too.
    model, steps = _counting_model(strategy)
    model.fit(tfps.DatasetCreator(_of_worker), verbose=0)
    _assert_trained(model, times=1)
    assert _steps(steps) == [_ROWS // _BATCH, 0]

    join = Join(cluster, coordinator)
    model.fit(
        tfps.DatasetCreator(_of_split, splits=range(_SPLITS)),
        callbacks=[join],
        verbose=0,
    )
    _assert_trained(model, times=2)
    assert [event.worker_index for event in join.joined] == [1]
    assert not coordinator.absent_workers
    alone, late = _steps(steps)
    assert late > 0
    assert alone + late == 2 * _ROWS // _BATCH

    model.fit(tfps.DatasetCreator(_of_worker), verbose=0)
    _assert_trained(model, times=3)
    # Its own iterator begins with its own share.
    meet = threading.Barrier(coordinator.num_lanes)

    def first_number_at_once(iterator: Any) -> int:
        # Every lane of both workers runs one.
        meet.wait(_JOIN_SECONDS)
        numbers, _ = next(iterator)
        return int(numbers[0])

    found = coordinator.fetch(
        [
            coordinator.schedule(first_number_at_once, args=(batches,))
            for _ in range(coordinator.num_lanes)
        ]
    )
    half = coordinator.num_lanes // 2
    assert sorted(found) == [
        *(_BATCH * (3 + number) for number in range(half)),
        *(_ROWS_OF_WORKER + _BATCH * number for number in range(half)),
    ]
    assert coordinator.counters.value("workers_joined") == 1
    assert coordinator.counters.value("workers_lost") == 0


def test_more_workers_than_there_are_is_refused(
    cluster: tfps.LocalCluster,
) -> None:
    with pytest.raises(ValueError, match="Received: min_workers=3"):
        tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            startup=tfps.StartupOptions(min_workers=3),
        )

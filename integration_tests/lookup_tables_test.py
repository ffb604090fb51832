"""Tests that each worker has its own copy of a lookup table."""

import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.strategy import extended
from tfps_plugin.variables.per_worker.worker_tables import WorkerTable

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=1)

_WORKERS = ("/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1")
_TIMEOUT_SECONDS = 60.0
_WORDS = ["ash", "birch", "cedar"]
_QUERY = ["birch", "oak"]

LookUp = Callable[[tf.Tensor], tf.Tensor]


def _static_hash_table() -> LookUp:
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(
            _WORDS, tf.constant([5, 6, 7], tf.int64)
        ),
        default_value=-1,
    ).lookup


def _static_vocabulary_table() -> LookUp:
    return tf.lookup.StaticVocabularyTable(
        tf.lookup.KeyValueTensorInitializer(
            _WORDS, tf.constant([0, 1, 2], tf.int64)
        ),
        num_oov_buckets=2,
    ).lookup


def _string_lookup() -> LookUp:
    return keras.layers.StringLookup(vocabulary=_WORDS)


@pytest.fixture(scope="module")
def strategy(
    cluster: tfps.LocalCluster,
) -> tfps.ParameterServerStrategy:
    return tfps.ParameterServerStrategy(cluster.cluster_resolver)


@pytest.fixture(scope="module")
def coordinator(
    strategy: tfps.ParameterServerStrategy,
) -> Iterator[tfps.ClusterCoordinator]:
    made = tfps.ClusterCoordinator(strategy)
    yield made
    made.close()


@pytest.fixture(
    params=[_static_hash_table, _static_vocabulary_table, _string_lookup]
)
def make(request: pytest.FixtureRequest) -> Callable[[], LookUp]:
    """Returns a maker of an object with a lookup table."""
    function: Callable[[], LookUp] = request.param
    return function


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[WorkerTable]:
    """Returns the tables that are made during the test."""
    made = []

    def make_and_keep(*args: Any, **kwargs: Any) -> WorkerTable:
        made.append(WorkerTable(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(extended, "WorkerTable", make_and_keep)
    return made


def _task_of(device: str) -> str:
    return device.rsplit("/device:", 1)[0]


def _homes(table: WorkerTable) -> list[str]:
    """Returns the tasks that have a copy of the table."""
    return sorted(
        _task_of(copy.resource_handle.device)
        for copy in table.copies.resident.existing()
    )


def _on_both_workers(
    coordinator: tfps.ClusterCoordinator, function: Any, *args: Any
) -> list[Any]:
    """Calls a function on each lane of each worker; returns the results."""
    barrier = threading.Barrier(coordinator.num_lanes)

    def call() -> Any:
        barrier.wait(_TIMEOUT_SECONDS)
        return function(
            *(
                arg.current() if isinstance(arg, tfps.PerWorkerValues) else arg
                for arg in args
            )
        )

    calls = [coordinator.schedule(call) for _ in range(coordinator.num_lanes)]
    return list(coordinator.fetch(calls))


def _resources(
    coordinator: tfps.ClusterCoordinator, function: Any
) -> set[tuple[int, str]]:
    """Returns pairs of a worker and a task whose resources its calls use."""

    def used() -> tuple[int, tuple[str, ...]]:
        context = dispatch_context.current()
        assert context is not None
        return context.worker_index, tuple(
            _task_of(captured.device)
            for captured in function.captured_inputs
            if captured.dtype in (tf.resource, tf.variant)
        )

    return {
        (worker, task)
        for worker, tasks in _on_both_workers(coordinator, used)
        for task in tasks
    }


def test_steps_look_up_on_their_own_worker(
    coordinator: tfps.ClusterCoordinator,
    make: Callable[[], LookUp],
    tables: list[WorkerTable],
) -> None:
    expected = make()(tf.constant(_QUERY)).numpy()
    assert not tables
    with coordinator.strategy.scope():
        look_up = make()
    (table,) = tables
    num_traces = []

    @tf.function
    def step() -> tf.Tensor:
        num_traces.append(1)
        return look_up(tf.constant(_QUERY))

    for result in coordinator.fetch(
        [coordinator.schedule(step) for _ in range(20)]
    ):
        np.testing.assert_array_equal(result, expected)
    assert len(num_traces) == 1
    assert _resources(coordinator, step.get_concrete_function()) == {
        (0, _WORKERS[0]),
        (1, _WORKERS[1]),
    }
    assert _homes(table) == list(_WORKERS)


def test_the_chief_looks_up_in_its_own(
    coordinator: tfps.ClusterCoordinator,
    make: Callable[[], LookUp],
    tables: list[WorkerTable],
) -> None:
    expected = make()(tf.constant(_QUERY)).numpy()
    with coordinator.strategy.scope():
        look_up = make()
    (table,) = tables
    np.testing.assert_array_equal(look_up(tf.constant(_QUERY)), expected)
    np.testing.assert_array_equal(
        tf.function(look_up)(tf.constant(_QUERY)), expected
    )
    (read,) = tf.data.Dataset.from_tensors(tf.constant(_QUERY)).map(
        lambda words: look_up(words)
    )
    np.testing.assert_array_equal(read, expected)
    assert _homes(table) == []


@tf.function
def _next(iterator: Any) -> tf.Tensor:
    return next(iterator)


def test_datasets_look_up_on_their_own_worker(
    coordinator: tfps.ClusterCoordinator,
    make: Callable[[], LookUp],
    tables: list[WorkerTable],
) -> None:
    """A table from outside the dataset function has two copies."""
    expected = make()(tf.constant(_QUERY)).numpy()
    with coordinator.strategy.scope():
        look_up = make()
    (table,) = tables

    def dataset_fn() -> tf.data.Dataset:
        queries = tf.data.Dataset.from_tensors(tf.constant(_QUERY)).repeat()
        return queries.map(lambda words: look_up(words))

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    for result in _on_both_workers(coordinator, _next, iterator):
        np.testing.assert_array_equal(result, expected)
    assert _homes(table) == list(_WORKERS)


def test_dataset_functions_make_tables_on_their_worker(
    coordinator: tfps.ClusterCoordinator,
    make: Callable[[], LookUp],
    tables: list[WorkerTable],
) -> None:
    """The dataset function is called once for each worker."""
    expected = make()(tf.constant(_QUERY)).numpy()

    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        look_up = make()
        queries = tf.data.Dataset.from_tensors(tf.constant(_QUERY)).repeat()
        return queries.map(lambda words: look_up(words))

    @tf.function
    def per_worker_dataset_fn() -> tf.data.Dataset:
        return coordinator.strategy.distribute_datasets_from_function(
            dataset_fn
        )

    iterator = iter(
        coordinator.create_per_worker_dataset(per_worker_dataset_fn)
    )
    for result in _on_both_workers(coordinator, _next, iterator):
        np.testing.assert_array_equal(result, expected)
    assert [_homes(table) for table in tables] == [
        [_WORKERS[0]],
        [_WORKERS[1]],
    ]


def test_a_dataset_of_the_chief_takes_its_table_along(
    coordinator: tfps.ClusterCoordinator, make: Callable[[], LookUp]
) -> None:
    expected = make()(tf.constant(_QUERY)).numpy()
    with coordinator.strategy.scope():
        look_up = make()
    dataset = (
        tf.data.Dataset.from_tensors(tf.constant(_QUERY))
        .map(lambda words: look_up(words))
        .repeat()
    )
    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    for result in _on_both_workers(coordinator, _next, iterator):
        np.testing.assert_array_equal(result, expected)

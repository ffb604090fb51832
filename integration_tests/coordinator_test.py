"""Tests of the coordinator on a cluster of real processes."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.chief.session import Session
from tfps_plugin.cluster.local_cluster import LocalCluster
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.inputs.per_worker_values import PerWorkerValues
from tfps_plugin.inputs.tuning import without_tuning

_TIMEOUT_SECONDS = 120.0
_NUM_LANES_PER_WORKER = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(num_workers=2, num_ps=1) as running:
        yield running


@pytest.fixture(scope="module")
def strategy(cluster: LocalCluster) -> FakeStrategy:
    session = Session.connect(cluster.cluster_spec)
    return FakeStrategy(session, _NUM_LANES_PER_WORKER)


@pytest.fixture(scope="module")
def coordinator(strategy: FakeStrategy) -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(strategy)
    yield made
    made.close()


@pytest.fixture
def counter(strategy: FakeStrategy) -> tf.Variable:
    """Returns a scalar variable on the ps."""
    (ps,) = strategy.session.cluster.parameter_servers
    with tf.device(strategy.session.device(ps)):
        return tf.Variable(0, dtype=tf.int64)


def _on_every_lane(
    coordinator: ClusterCoordinator, function: Any, *args: Any
) -> list[Any]:
    """Calls a function on every lane at the same time; returns the results."""
    barrier = threading.Barrier(coordinator.num_lanes)

    def meet(*args: Any) -> tuple[int, Any]:
        barrier.wait(_TIMEOUT_SECONDS)
        context = dispatch_context.current()
        assert context is not None
        return context.worker_index, function(*args)

    values = [
        coordinator.schedule(meet, args=args)
        for _ in range(coordinator.num_lanes)
    ]
    return sorted(coordinator.fetch(values))


def test_python_callable_runs_on_the_worker(
    coordinator: ClusterCoordinator,
) -> None:
    value = coordinator.schedule(lambda: tf.constant(1.0) + 1.0)
    coordinator.join()
    assert "/job:worker/replica:0/task:" in value.get().device
    assert value.fetch() == 2.0


def test_tf_function_and_concrete_function(
    coordinator: ClusterCoordinator, counter: tf.Variable
) -> None:
    num_traces = []

    @tf.function
    def add(x: tf.Tensor) -> tf.Tensor:
        num_traces.append(1)
        counter.assign_add(x)
        return 2 * x

    concrete = add.get_concrete_function(tf.TensorSpec([], tf.int64))
    values = []
    for number in range(20):
        function = add if number % 2 else concrete
        x = tf.constant(number, tf.int64)
        values.append(coordinator.schedule(function, args=(x,)))
    coordinator.join()
    assert coordinator.fetch(values) == [2 * n for n in range(20)]
    assert counter.numpy() == sum(range(20))
    assert len(num_traces) == 1
    assert "/job:worker" in values[0].get().device


def test_schedule_on_runs_on_that_worker(
    coordinator: ClusterCoordinator, counter: tf.Variable
) -> None:
    @tf.function
    def add(x: tf.Tensor) -> tf.Tensor:
        counter.assign_add(x)
        return 2 * x

    one = tf.constant(1, tf.int64)
    values = [
        coordinator.schedule_on(number % 2, add, args=(one,))
        for number in range(20)
    ]
    # Others run beside them, anywhere.
    others = [coordinator.schedule(add, args=(one,)) for _ in range(20)]
    coordinator.join()
    assert coordinator.fetch([*values, *others]) == [2] * 40
    for number, value in enumerate(values):
        worker = f"/job:worker/replica:0/task:{number % 2}/"
        assert worker in value.get().device
    assert counter.numpy() == 40


def test_functions_really_overlap_on_the_workers(
    coordinator: ClusterCoordinator, strategy: FakeStrategy
) -> None:
    num_lanes = coordinator.num_lanes
    (ps,) = strategy.session.cluster.parameter_servers
    with tf.device(strategy.session.device(ps)):
        arrived = tf.queue.FIFOQueue(num_lanes, tf.int32, [[]])
        leave = tf.queue.FIFOQueue(num_lanes, tf.int32, [[]])

    @tf.function
    def meet(x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([arrived.enqueue(x)]):
            return leave.dequeue() + x

    def call_at_once() -> list[Any]:
        return [
            coordinator.schedule(meet, args=(tf.constant(number),))
            for number in range(num_lanes)
        ]

    # The first call on each worker is alone there.
    prepared: set[str] = set()
    while len(prepared) < 2:
        leave.enqueue_many([[0] * num_lanes])
        prepared |= {value.get().device for value in call_at_once()}
        arrived.dequeue_many(num_lanes)
    values = call_at_once()
    # All calls are inside at the same time: every one has arrived, and none has
    # left.
    everybody = arrived.dequeue_many(num_lanes).numpy()
    assert sorted(everybody) == list(range(num_lanes))
    assert not any(value.is_ready() for value in values)
    leave.enqueue_many([[100] * num_lanes])
    coordinator.join()
    assert coordinator.fetch(values) == [100 + n for n in range(num_lanes)]


def test_per_worker_values(coordinator: ClusterCoordinator) -> None:
    def build(context: dispatch_context.DispatchContext) -> tf.Tensor:
        return tf.constant(100 + context.worker_index)

    own = PerWorkerValues(build, type_spec=tf.TensorSpec([], tf.int32))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return x + 1000

    assert _on_every_lane(coordinator, step, own) == [
        (0, 1100),
        (0, 1100),
        (1, 1101),
        (1, 1101),
    ]
    assert coordinator.schedule(step, args=(own,)).fetch() in (1100, 1101)


def _numbers_of_worker(
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    return tf.data.Dataset.range(1_000_000).shard(
        context.num_input_pipelines, context.input_pipeline_id
    )


@tf.function
def _next(iterator: Any) -> tf.Tensor:
    return next(iterator)


def test_each_worker_reads_its_own_share(
    coordinator: ClusterCoordinator,
) -> None:
    iterator = iter(coordinator.create_per_worker_dataset(_numbers_of_worker))
    assert _on_every_lane(coordinator, _next, iterator) == [
        (0, 0),
        (0, 2),
        (1, 1),
        (1, 3),
    ]


def test_dataset_of_the_chief_with_its_options(
    coordinator: ClusterCoordinator,
) -> None:
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 3
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1
    )
    dataset = (
        tf.data.Dataset.from_tensor_slices(["b", "a", "z"])
        .map(table.lookup)
        .with_options(options)
    )
    per_worker = coordinator.create_per_worker_dataset(dataset)
    read = coordinator.schedule(_next, args=(iter(per_worker),))
    assert read.fetch() == 2

    def options_there() -> tf.Tensor:
        context = dispatch_context.current()
        assert context is not None
        built = per_worker.build(context.worker_index)
        variant = tf.data.experimental.to_variant(built)
        assert "/job:worker" in variant.device
        return tf.raw_ops.GetOptions(input_dataset=variant)

    expected = tf.raw_ops.GetOptions(
        input_dataset=tf.data.experimental.to_variant(without_tuning(dataset))
    )
    assert coordinator.schedule(options_there).fetch() == expected.numpy()


def test_error_of_a_step_is_raised_once(
    coordinator: ClusterCoordinator,
) -> None:
    @tf.function
    def fail(x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.assert_less(x, 0, "big")]):
            return x + 1

    def schedule_and_join() -> None:
        for _ in range(20):
            coordinator.schedule(fail, args=(tf.constant(1),))
        coordinator.join()

    # The first call may fail before the last is scheduled.
    with pytest.raises(tf.errors.InvalidArgumentError, match="big"):
        schedule_and_join()
    coordinator.join()
    assert coordinator.done()
    value = coordinator.schedule(fail, args=(tf.constant(-1),))
    assert coordinator.fetch(value) == 0


def test_error_of_a_step_ends_functions_that_never_end(
    coordinator: ClusterCoordinator,
) -> None:
    @tf.function
    def run_for_ever() -> tf.Tensor:
        x = tf.random.uniform((50, 50))
        while tf.reduce_sum(x) < 1e9:
            x = tf.matmul(x, x)
            x = x / tf.norm(x)
        return x

    def fail() -> None:
        # Raised on the chief: the other calls occupy the workers' threads.
        raise ZeroDivisionError

    num_lanes = coordinator.num_lanes
    for _ in range(2):
        endless = [
            coordinator.schedule(run_for_ever) for _ in range(num_lanes - 1)
        ]
        coordinator.schedule(fail)
        with pytest.raises(ZeroDivisionError):
            coordinator.join()
        for value in endless:
            with pytest.raises(tf.errors.CancelledError):
                value.fetch()
    double = tf.function(lambda x: 2 * x)
    results = _on_every_lane(coordinator, double, tf.constant(3))
    assert [int(each) for _, each in results] == [6] * num_lanes


def test_a_call_of_the_chief_ends_with_its_connection_to_a_ps(
    strategy: FakeStrategy, counter: tf.Variable
) -> None:
    (ps,) = strategy.session.cluster.parameter_servers
    with tf.device(strategy.session.device(ps)):
        empty = tf.queue.FIFOQueue(1, tf.int64, shapes=[[]])
    raised: list[type[BaseException]] = []

    @tf.function
    def wait_on_the_ps() -> tf.Tensor:
        counter.assign_add(1)
        with tf.device(strategy.session.device(ps)):
            return empty.dequeue()

    def call() -> None:
        try:
            wait_on_the_ps()
        except tf.errors.OpError as error:
            # Not the error itself: it would keep the queue until the end.
            raised.append(type(error))

    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while int(counter) == 0:
        assert time.monotonic() < deadline, "the function did not begin"
    strategy.session.break_connections(ps)
    thread.join(_TIMEOUT_SECONDS)
    assert not thread.is_alive()
    assert raised == [tf.errors.UnavailableError]
    # The ps lives, and keeps what it has.
    assert int(counter) == 1

"""Tests of the coordinator when real processes die, hang and come back."""

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_functions
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.chief.session import Session
from tfps_plugin.cluster.local_cluster import LocalCluster
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.inputs.worker_dataset import WorkerIterator
from tfps_plugin.monitoring import events

# Each test loses or delays tasks, and takes long.
pytestmark = pytest.mark.sample(cases=2, group="faults_coordinator")

_TIMEOUT_SECONDS = 120.0
# gRPC sends a keepalive ping at most this long after data have arrived.
_QUIET_SECONDS = 11.0
# A thread that is not held up, on a busy machine. TensorFlow would hold it up
# for 8 to 20 s at a time.
_SHORT_SECONDS = 5.0


class _Bench:
    """A cluster, its coordinator, and the coordinator's events."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.session = Session.connect(cluster.cluster_spec)
        self.coordinator = ClusterCoordinator(
            FakeStrategy(self.session), patience_seconds=1.0
        )
        (ps,) = self.session.cluster.parameter_servers
        with tf.device(self.session.device(ps)):
            self.counter = tf.Variable(0, dtype=tf.int64)
        self._seen: list[events.Event] = []
        self._condition = threading.Condition()
        self.coordinator.events.subscribe(self._record)

    def _record(self, event: events.Event) -> None:
        with self._condition:
            self._seen.append(event)
            self._condition.notify_all()

    def wait_for(self, kind: type[events.Event], number: int = 1) -> Any:
        """Waits for the event of that kind and number, counted from one."""

        def found() -> list[events.Event]:
            return [each for each in self._seen if isinstance(each, kind)]

        with self._condition:
            assert self._condition.wait_for(
                lambda: len(found()) >= number, _TIMEOUT_SECONDS
            ), f"{kind.__name__} {number} is not among {self._seen}"
            return found()[number - 1]

    def iterator(self) -> WorkerIterator:
        """Returns even numbers on worker 0, odd ones on worker 1."""
        return iter(self.coordinator.create_per_worker_dataset(_numbers))

    def on_every_lane(self, function: Any, *args: Any) -> list[Any]:
        """Calls a function on every lane at the same time; returns results."""
        barrier = threading.Barrier(self.coordinator.num_lanes)

        def meet(*args: Any) -> tuple[int, Any]:
            barrier.wait(_TIMEOUT_SECONDS)
            context = dispatch_context.current()
            assert context is not None
            return context.worker_index, function(*args)

        values = [
            self.coordinator.schedule(meet, args=args)
            for _ in range(self.coordinator.num_lanes)
        ]
        return sorted(self.coordinator.fetch(values))


@pytest.fixture
def bench() -> Iterator[_Bench]:
    with LocalCluster(num_workers=2, num_ps=1) as cluster:
        made = _Bench(cluster)
        yield made
        made.coordinator.close()


def _numbers(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return tf.data.Dataset.range(1_000_000).shard(
        context.num_input_pipelines, context.input_pipeline_id
    )


@tf.function
def _next(iterator: Any) -> tf.Tensor:
    return next(iterator)


def test_workers_die_and_come_back(bench: _Bench) -> None:
    coordinator, cluster = bench.coordinator, bench.cluster
    iterator = bench.iterator()

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        bench.counter.assign_add(1)
        return next(iterator)

    assert (1, 1) in bench.on_every_lane(_next, iterator)

    # The worker is killed in the middle of these.
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(300)]
    values[20].get(_TIMEOUT_SECONDS)
    cluster.kill("worker", 1)
    values += [coordinator.schedule(step, args=(iterator,)) for _ in range(500)]
    coordinator.join()
    assert all(value.is_ready() for value in values)
    assert all(value.error is None for value in values)
    assert bench.counter.numpy() >= len(values), "each runs at least once"
    assert bench.wait_for(events.WorkerLost).worker_index == 1

    cluster.start("worker", 1)
    back = bench.wait_for(events.WorkerReadmitted)
    assert (back.worker_index, back.generation) == (1, 1)
    assert coordinator.absent_workers == ()
    # It takes part again, and its dataset starts over.
    again = bench.on_every_lane(_next, iterator)
    assert [element for worker, element in again if worker == 1] == [1, 3]
    assert coordinator.schedule(step, args=(iterator,)).fetch() > 0

    # It is restarted before anybody notices.
    cluster.kill("worker", 0)
    cluster.start("worker", 0, wait=True)
    values = [coordinator.schedule(step, args=(iterator,)) for _ in range(500)]
    coordinator.join()
    assert all(value.error is None for value in values)
    assert bench.wait_for(events.WorkerLost, 2).worker_index == 0
    bench.wait_for(events.WorkerReadmitted, 2)
    again = bench.on_every_lane(_next, iterator)
    assert {worker for worker, _ in again} == {0, 1}


def test_all_workers_die_and_come_back(bench: _Bench) -> None:
    coordinator, cluster = bench.coordinator, bench.cluster
    iterator = bench.iterator()
    bench.on_every_lane(_next, iterator)
    kept = coordinator.schedule(lambda: tf.constant(1.0))
    coordinator.join()

    for index in range(2):
        cluster.kill("worker", index)
    with pytest.raises(errors.WorkerLostError, match="does not answer"):
        kept.fetch()
    values = [coordinator.schedule(_next, args=(iterator,)) for _ in range(20)]
    bench.wait_for(events.NoWorkerLeft)
    for index in range(2):
        cluster.start("worker", index)
    coordinator.join()
    assert all(value.error is None for value in values)


def test_worker_hangs_and_goes_on(bench: _Bench) -> None:
    coordinator, cluster = bench.coordinator, bench.cluster
    iterator = bench.iterator()
    bench.on_every_lane(_next, iterator)
    done_before = coordinator.counters.value("closures_done")
    done_at_loss: list[int] = []

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerLost):
            done = coordinator.counters.value("closures_done")
            done_at_loss.append(done - done_before)

    coordinator.events.subscribe(note)
    process = cluster.process("worker", 1)
    process.send_signal(signal.SIGSTOP)
    try:
        values = [
            coordinator.schedule(_next, args=(iterator,)) for _ in range(50)
        ]
        began = time.monotonic()
        coordinator.join()
        print(f"join took {time.monotonic() - began:.1f} s")
        assert all(value.error is None for value in values)
        assert bench.wait_for(events.WorkerLost).worker_index == 1
    finally:
        process.send_signal(signal.SIGCONT)
    # All closures but those of its own two lanes had run before the loss.
    assert done_at_loss == [48]
    bench.wait_for(events.WorkerReadmitted)
    again = bench.on_every_lane(_next, iterator)
    assert [element for worker, element in again if worker == 1] == [1, 3]


def test_a_worker_hangs_while_nothing_is_on_its_way(bench: _Bench) -> None:
    # gRPC would notice only after minutes: it sends keepalive pings when data
    # arrive. TensorFlow cannot change a cluster while a call is in flight.
    coordinator, cluster = bench.coordinator, bench.cluster

    result = coordinator.schedule(tf.function(_begin_and_wait))
    hanging, other = _in_order_of_who_has_begun(bench.session)
    with pytest.raises(TimeoutError):
        result.get(_QUIET_SECONDS)
    process = cluster.process("worker", hanging.index)
    process.send_signal(signal.SIGSTOP)
    try:
        lost = bench.wait_for(events.WorkerLost)
        assert lost.worker_index == hanging.index
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while hanging in bench.session.listed:
            assert time.monotonic() < deadline
            # Other closures are not delayed.
            assert coordinator.schedule(lambda: tf.constant(1)).fetch() == 1
        _end_wait(bench.session, other)
        assert result.fetch() == 7.0
    finally:
        process.send_signal(signal.SIGCONT)
    bench.wait_for(events.WorkerReadmitted)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_only_one_worker_may_run_ends_with_it(
    bench: _Bench, how: str
) -> None:
    coordinator, cluster = bench.coordinator, bench.cluster
    worker = bench.session.cluster.workers[1]
    with coordinator.functions.tracing_scope():
        traced = tf.function(_begin_and_wait).get_concrete_function()
    begin_and_wait = coordinator.functions.prepare(traced)
    ran_on: list[int] = []

    def run() -> tf.Tensor:
        ran_on.append(_where())
        return begin_and_wait()

    # The first call on each worker is alone there.
    first = coordinator.schedule_on(1, run)
    _end_wait(bench.session, worker)
    assert first.fetch() == 7.0
    # One of them runs on each lane of the worker, and one waits.
    values = [coordinator.schedule_on(1, run) for _ in range(3)]
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while _num_begun(bench.session, worker) < 3:
        assert time.monotonic() < deadline
    process = cluster.process("worker", 1)
    if how == "killed":
        cluster.kill("worker", 1)
    else:
        process.send_signal(signal.SIGSTOP)
    try:
        others = [coordinator.schedule(_where) for _ in range(10)]
        began = time.monotonic()
        coordinator.join()
        print(f"join took {time.monotonic() - began:.1f} s")
        assert bench.wait_for(events.WorkerLost).worker_index == 1
        # A new one is cancelled at once as long as the worker is away.
        values.append(coordinator.schedule_on(1, run))
        for value in values:
            with pytest.raises(errors.ClosureCancelledError):
                value.fetch(_TIMEOUT_SECONDS)
        assert coordinator.schedule_on(0, _where).fetch() == 0
        assert coordinator.fetch(others) == [0] * 10
    finally:
        process.send_signal(signal.SIGCONT)
    if how == "killed":
        cluster.start("worker", 1)
    bench.wait_for(events.WorkerReadmitted)
    assert coordinator.schedule_on(1, _where).fetch() == 1
    coordinator.join()
    assert ran_on == [1, 1, 1], "none ran twice, or elsewhere"


def _where() -> int:
    return dispatch_context.required().worker_index


def _begin_and_wait() -> tf.Tensor:
    """Waits on its worker for a number that `_end_wait` sends."""
    begun = tf.raw_ops.QueueEnqueueV2(handle=_queue("begun"), components=[1.0])
    with tf.control_dependencies([begun]):
        (number,) = tf.raw_ops.QueueDequeueV2(
            handle=_queue("end"), component_types=[tf.float32]
        )
    return number


def _end_wait(session: Session, worker: Task) -> None:
    with tf.device(session.device(worker)):
        tf.raw_ops.QueueEnqueueV2(handle=_queue("end"), components=[7.0])


def _num_begun(session: Session, worker: Task) -> int:
    with tf.device(session.device(worker)):
        return int(tf.raw_ops.QueueSizeV2(handle=_queue("begun")))


def _queue(name: str) -> tf.Tensor:
    return tf.raw_ops.FIFOQueueV2(
        component_types=[tf.float32], shared_name=name
    )


def _in_order_of_who_has_begun(session: Session) -> list[Task]:
    """Returns the workers, first the one whose queue "begun" is not empty."""

    def has_begun(worker: Task) -> bool:
        return _num_begun(session, worker) > 0

    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        workers = sorted(session.cluster.workers, key=has_begun, reverse=True)
        if has_begun(workers[0]):
            return workers
        assert time.monotonic() < deadline


def test_ps_dies(bench: _Bench) -> None:
    coordinator = bench.coordinator

    @tf.function
    def step() -> tf.Tensor:
        return bench.counter.assign_add(1)

    assert coordinator.schedule(step).fetch() == 1
    bench.cluster.kill("ps", 0)
    values = [coordinator.schedule(step) for _ in range(20)]
    with pytest.raises(errors.ParameterServerLostError) as caught:
        coordinator.join()
    (ps,) = bench.session.cluster.parameter_servers
    assert f"Parameter server 0 at {ps.address}" in str(caught.value)
    assert isinstance(caught.value.__cause__, tf.errors.OpError)
    assert all(value.is_ready() for value in values)
    # Closures that need no ps still run.
    assert coordinator.schedule(lambda: tf.constant(1)).fetch() == 1


def test_ps_hangs(bench: _Bench) -> None:
    coordinator = bench.coordinator

    @tf.function
    def step() -> tf.Tensor:
        return bench.counter.assign_add(1)

    assert coordinator.schedule(step).fetch() == 1
    lost = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.ParameterServerLost):
            lost.set()

    coordinator.events.subscribe(note)
    process = bench.cluster.process("ps", 0)
    process.send_signal(signal.SIGSTOP)
    try:
        # One lane waits for the ps; lanes that do not need it do not wait.
        coordinator.schedule(step)
        for _ in range(20):
            value = coordinator.schedule(lambda: tf.constant(1) + 1)
            assert value.fetch(_TIMEOUT_SECONDS) == 2
        assert not lost.is_set()
        for _ in range(20):
            coordinator.schedule(step)
        began = time.monotonic()
        with pytest.raises(errors.ParameterServerLostError):
            coordinator.join()
        print(f"join took {time.monotonic() - began:.1f} s")
    finally:
        process.send_signal(signal.SIGCONT)


def test_the_chief_alone_waits_for_a_ps_that_hangs(bench: _Bench) -> None:
    lost = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.ParameterServerLost):
            lost.set()

    bench.coordinator.events.subscribe(note)
    bench.counter.assign(7)
    # No call is in flight, so gRPC would ping after five minutes. A worker that
    # answers is not given up, although nobody calls it.
    assert not lost.wait(_QUIET_SECONDS)
    process = bench.cluster.process("ps", 0)
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(tf.errors.UnavailableError):
            bench.counter.numpy()
        assert lost.is_set()
    finally:
        process.send_signal(signal.SIGCONT)
    waited_seconds = time.monotonic() - began
    print(f"waited {waited_seconds:.1f} s")
    assert waited_seconds < _TIMEOUT_SECONDS
    # It is alive and has its value.
    assert bench.counter.numpy() == 7


def test_a_function_that_kills_its_workers_is_reported(bench: _Bench) -> None:
    coordinator, cluster = bench.coordinator, bench.cluster
    victims: list[int] = []

    def kill(x: tf.Tensor) -> tf.Tensor:
        context = dispatch_context.current()
        assert context is not None
        victims.append(context.worker_index)
        cluster.kill("worker", context.worker_index)
        cluster.start("worker", context.worker_index)
        # `x` is on the worker, which is gone.
        return tf.identity(x) + 1

    coordinator.schedule(kill, args=(tf.zeros([3]),))
    with pytest.raises(
        errors.ClosureLosesWorkersError, match=r"kill\(float32\[3\]\)"
    ):
        coordinator.join()
    assert len(victims) == 4
    # The cluster is usable.
    value = coordinator.schedule(lambda: tf.constant(7) + 1)
    assert value.fetch() == 8


def test_threads_go_on_while_a_trace_waits_for_a_ps_that_hangs(
    bench: _Bench,
) -> None:
    """TensorFlow itself would hold Python's global lock for minutes."""
    process = bench.cluster.process("ps", 0)
    process.send_signal(signal.SIGSTOP)
    traced: list[Any] = []

    def trace() -> None:
        function = tf.function(lambda: bench.counter.assign_add(3))
        traced.append(function.get_concrete_function())

    thread = threading.Thread(target=trace)
    # As if the tasks had not been asked a moment ago.
    tensorflow_functions._roll_call._fresh_until = 0.0
    thread.start()
    try:
        for _ in range(10):
            began = time.monotonic()
            thread.join(0.2)
            assert time.monotonic() - began < _SHORT_SECONDS
            assert not traced
    finally:
        process.send_signal(signal.SIGCONT)
    thread.join(_TIMEOUT_SECONDS)
    assert bench.coordinator.schedule(traced[0]).fetch() == 3

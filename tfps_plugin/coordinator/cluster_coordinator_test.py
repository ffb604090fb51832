"""Tests of the coordinator on a cluster without processes."""

import concurrent.futures
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.inputs.per_worker_values import PerWorkerValues
from tfps_plugin.monitoring import events
from tfps_plugin.strategy.options import SchedulingOptions

_TIMEOUT_SECONDS = 30.0


@pytest.fixture
def strategy() -> FakeStrategy:
    return FakeStrategy(FakeSession(num_workers=2, num_ps=1))


@pytest.fixture
def coordinator(strategy: FakeStrategy) -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(strategy)
    yield made
    made.close()


def _worker_index() -> int:
    context = dispatch_context.current()
    assert context is not None
    return context.worker_index


def _unavailable(task: str) -> Exception:
    error: Exception = tf.errors.UnavailableError(
        None,
        None,
        "failed to connect to all addresses\nAdditional GRPC error "
        f"information from remote target {task} while calling Enqueue",
    )
    return error


class _Recorder:
    """Collects events; waits for those that a test expects."""

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        self.seen: list[events.Event] = []
        self._condition = threading.Condition()
        coordinator.events.subscribe(self._record)

    def _record(self, event: events.Event) -> None:
        with self._condition:
            self.seen.append(event)
            self._condition.notify_all()

    def of(self, kind: type[events.Event]) -> list[events.Event]:
        with self._condition:
            return [event for event in self.seen if isinstance(event, kind)]

    def wait_for(self, kind: type[events.Event]) -> events.Event:
        with self._condition:
            assert self._condition.wait_for(
                lambda: any(isinstance(each, kind) for each in self.seen),
                _TIMEOUT_SECONDS,
            ), f"no {kind.__name__} among {self.seen}"
        return self.of(kind)[0]


def test_runs_a_python_callable(coordinator: ClusterCoordinator) -> None:
    value = coordinator.schedule(lambda a, b: a + b, args=(1,), kwargs={"b": 2})
    assert value.fetch(_TIMEOUT_SECONDS) == 3
    assert value.is_ready()
    assert value.error is None
    coordinator.join()
    assert coordinator.done()
    assert coordinator.counters.value("closures_done") == 1


def test_runs_a_tf_function_traced_once(
    coordinator: ClusterCoordinator,
) -> None:
    num_traces = []

    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        num_traces.append(1)
        return 2.0 * x

    values = [
        coordinator.schedule(double, args=(tf.constant(float(number)),))
        for number in range(50)
    ]
    coordinator.join()
    assert coordinator.fetch(values) == [2.0 * number for number in range(50)]
    assert len(num_traces) == 1


def test_trace_keeps_no_device_of_the_caller(
    coordinator: ClusterCoordinator,
) -> None:
    devices: list[str] = []

    @tf.function
    def step() -> tf.Tensor:
        result = tf.constant(1.0) + 1.0
        devices.append(result.device)
        return result

    with tf.device("/device:CPU:0"):
        coordinator.schedule(step)
    coordinator.schedule(step)
    coordinator.join()
    assert devices == [""]


def test_runs_a_concrete_function(coordinator: ClusterCoordinator) -> None:
    @tf.function
    def double(x: tf.Tensor) -> tf.Tensor:
        return 2.0 * x

    concrete = double.get_concrete_function(tf.TensorSpec([], tf.float32))
    value = coordinator.schedule(concrete, args=[tf.constant(3.0)])
    assert coordinator.fetch(value) == 6.0


def test_fetches_nested_structures(coordinator: ClusterCoordinator) -> None:
    one = coordinator.schedule(lambda: tf.constant(1))
    two = coordinator.schedule(lambda: {"two": [tf.constant(2), "text"]})
    fetched = coordinator.fetch({"a": (one, 5), "b": [two, None]})
    assert fetched == {"a": (1, 5), "b": [{"two": [2, "text"]}, None]}


def test_every_lane_works_at_the_same_time(
    coordinator: ClusterCoordinator,
) -> None:
    # Each closure waits for all others: this ends only if they overlap.
    barrier = threading.Barrier(coordinator.num_lanes)

    def meet() -> tuple[int, int]:
        barrier.wait(_TIMEOUT_SECONDS)
        context = dispatch_context.current()
        assert context is not None
        return context.worker_index, context.lane_index

    values = [coordinator.schedule(meet) for _ in range(coordinator.num_lanes)]
    assert sorted(coordinator.fetch(values)) == [
        (0, 0),
        (0, 1),
        (1, 2),
        (1, 3),
    ]


def test_per_worker_values(coordinator: ClusterCoordinator) -> None:
    built: list[int] = []

    def build(context: dispatch_context.DispatchContext) -> int:
        built.append(context.worker_index)
        return 100 + context.worker_index

    own = PerWorkerValues(build)
    barrier = threading.Barrier(coordinator.num_lanes)

    def step(values: dict[str, Any], offset: int) -> tuple[int, int]:
        barrier.wait(_TIMEOUT_SECONDS)
        return values["own"][0] + offset, _worker_index()

    values = [
        coordinator.schedule(
            step, args=({"own": [own]},), kwargs={"offset": 1000}
        )
        for _ in range(coordinator.num_lanes)
    ]
    for value, worker_index in coordinator.fetch(values):
        assert value == 1100 + worker_index
    assert sorted(built) == [0, 1]


def test_per_worker_values_need_a_type_for_tf_functions(
    coordinator: ClusterCoordinator,
) -> None:
    with pytest.raises(ValueError, match="type_spec"):
        coordinator.schedule(
            tf.function(lambda x: x), args=(PerWorkerValues(lambda _: 1),)
        )


def test_refuses_what_it_cannot_schedule(
    coordinator: ClusterCoordinator,
) -> None:
    with pytest.raises(TypeError, match="fn=3"):
        coordinator.schedule(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"remote_value\.fetch\(\)"):
        coordinator.schedule(print, args=([RemoteValue()],))


def test_error_of_a_step_is_raised_once(
    coordinator: ClusterCoordinator,
) -> None:
    error = ZeroDivisionError("in the step")

    def fail() -> None:
        raise error

    value = coordinator.schedule(fail)
    with pytest.raises(ZeroDivisionError, match="in the step") as caught:
        coordinator.join()
    assert caught.value is error
    assert value.error is error
    coordinator.join()
    assert coordinator.schedule(lambda: 7).fetch(_TIMEOUT_SECONDS) == 7


@pytest.mark.parametrize("how", ["schedule", "done", "fetch", "value", "get"])
def test_error_of_a_step_is_raised_by_whatever_comes_next(
    coordinator: ClusterCoordinator, how: str
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("in the step")

    failed = coordinator.schedule(fail)
    while not failed.is_ready():
        threading.Event().wait(0.001)
    calls: dict[str, Callable[[], Any]] = {
        "schedule": lambda: coordinator.schedule(lambda: 1),
        "done": coordinator.done,
        "fetch": lambda: coordinator.fetch(failed),
        "value": failed.fetch,
        "get": failed.get,
    }
    with pytest.raises(ZeroDivisionError):
        calls[how]()
    coordinator.join()
    assert coordinator.done()


def test_error_cancels_what_was_scheduled_with_it(
    strategy: FakeStrategy,
) -> None:
    strategy.scheduling = SchedulingOptions(max_closures_in_flight_per_worker=1)
    coordinator = ClusterCoordinator(strategy)
    try:
        both_run = threading.Barrier(2)
        go_on = threading.Event()

        def fail() -> None:
            both_run.wait(_TIMEOUT_SECONDS)
            raise ZeroDivisionError("in the step")

        def run() -> int:
            both_run.wait(_TIMEOUT_SECONDS)
            assert go_on.wait(_TIMEOUT_SECONDS)
            return 1

        coordinator.schedule(fail)
        running = coordinator.schedule(run)
        queued = [coordinator.schedule(lambda: 2) for _ in range(5)]
        with pytest.raises(ZeroDivisionError):
            queued[-1].fetch(_TIMEOUT_SECONDS)
        with pytest.raises(errors.ClosureCancelledError):
            queued[-1].fetch(_TIMEOUT_SECONDS)
        assert not running.is_ready()
        go_on.set()
        coordinator.join()
        for value in (running, *queued):
            assert isinstance(value.error, errors.ClosureCancelledError)
    finally:
        coordinator.close()


def _most_at_a_time(
    coordinator: ClusterCoordinator, expected: int
) -> list[int]:
    """Returns, for each of many functions, how many ran at the same time.

    Each function waits until `expected` of them run.
    """
    together = threading.Barrier(expected)
    lock = threading.Lock()
    num_running = 0
    seen: list[int] = []

    def run() -> None:
        nonlocal num_running
        with lock:
            num_running += 1
        together.wait(_TIMEOUT_SECONDS)
        with lock:
            seen.append(num_running)
        together.wait(_TIMEOUT_SECONDS)
        with lock:
            num_running -= 1

    for _ in range(4 * expected):
        coordinator.schedule(run)
    coordinator.join()
    return seen


def test_so_many_functions_run_at_a_time_as_are_to(
    strategy: FakeStrategy,
) -> None:
    strategy.scheduling = SchedulingOptions(
        max_closures_in_flight_per_worker=None
    )
    coordinator = ClusterCoordinator(strategy)
    try:
        num_workers = coordinator.num_workers
        assert coordinator.in_flight_limits.at_first == 2
        assert coordinator.in_flight_limits.most == 4
        assert coordinator.in_flight_limits.least == 1
        for per_worker in (2, 4, 1, 3):
            coordinator.limit_in_flight(per_worker)
            assert coordinator.num_lanes == per_worker * num_workers
            seen = _most_at_a_time(coordinator, coordinator.num_lanes)
            assert max(seen) == coordinator.num_lanes
    finally:
        coordinator.close()


def test_one_at_a_time_would_not_prefetch(strategy: FakeStrategy) -> None:
    strategy.scheduling = SchedulingOptions(prefetch_embeddings=True)
    coordinator = ClusterCoordinator(strategy)
    try:
        assert coordinator.in_flight_limits.least == 2
    finally:
        coordinator.close()


def test_what_was_chosen_is_the_number_at_a_time(
    strategy: FakeStrategy,
) -> None:
    strategy.scheduling = SchedulingOptions(max_closures_in_flight_per_worker=3)
    coordinator = ClusterCoordinator(strategy)
    try:
        assert coordinator.in_flight_limits.at_first == 3
        assert coordinator.in_flight_limits.most == 3
        assert max(_most_at_a_time(coordinator, 6)) == 6
    finally:
        coordinator.close()


def test_even_system_exit_reaches_the_user(
    coordinator: ClusterCoordinator,
) -> None:
    def leave() -> None:
        raise SystemExit(3)

    coordinator.schedule(leave)
    with pytest.raises(SystemExit):
        coordinator.join()
    assert coordinator.schedule(lambda: 1).fetch(_TIMEOUT_SECONDS) == 1


def test_fetch_of_what_was_cancelled_raises_why(
    coordinator: ClusterCoordinator,
) -> None:
    hold = threading.Event()

    def fail() -> None:
        assert hold.wait(_TIMEOUT_SECONDS)
        raise ZeroDivisionError("in the step")

    for _ in range(coordinator.num_lanes):
        coordinator.schedule(fail)
    value = coordinator.schedule(lambda: 1)
    hold.set()
    with pytest.raises(ZeroDivisionError):
        coordinator.fetch(value)
    coordinator.join()


def test_cancel_queued(coordinator: ClusterCoordinator) -> None:
    hold = threading.Event()
    running = [
        coordinator.schedule(lambda: hold.wait(_TIMEOUT_SECONDS))
        for _ in range(coordinator.num_lanes)
    ]
    queued = [coordinator.schedule(lambda: 1) for _ in range(3)]
    num_cancelled = coordinator.cancel_queued()
    hold.set()
    coordinator.join()
    # A lane may not have begun its first one yet.
    cancelled = [v for v in (*running, *queued) if v.error is not None]
    assert len(cancelled) == num_cancelled >= 3


def test_waits_while_the_queue_is_full(
    coordinator: ClusterCoordinator,
) -> None:
    num_done = []
    for _ in range(5 * 32 * coordinator.num_lanes):
        coordinator.schedule(lambda: num_done.append(1))
    coordinator.join()
    assert len(num_done) == 5 * 32 * coordinator.num_lanes


def test_refused_inside_a_scheduled_function(
    coordinator: ClusterCoordinator,
) -> None:
    coordinator.schedule(coordinator.join)
    with pytest.raises(errors.UnsupportedError, match="inside a scheduled"):
        coordinator.join()


def test_refused_while_tracing(coordinator: ClusterCoordinator) -> None:
    @tf.function(autograph=False)
    def step() -> None:
        coordinator.schedule(lambda: 1)

    with pytest.raises(errors.UnsupportedError, match="traced"):
        step()


def test_one_coordinator_for_a_strategy(strategy: FakeStrategy) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(ClusterCoordinator, [strategy] * 8))
    try:
        assert len(set(map(id, made))) == 1
        assert strategy._cluster_coordinator is made[0]
    finally:
        made[0].close()


def test_a_new_one_after_close(strategy: FakeStrategy) -> None:
    first = ClusterCoordinator(strategy)
    first.close()
    first.close()
    with pytest.raises(errors.ClosureCancelledError, match="closed"):
        first.schedule(lambda: 1)
    second = ClusterCoordinator(strategy)
    assert second is not first
    assert second.schedule(lambda: 1).fetch(_TIMEOUT_SECONDS) == 1
    second.close()


def test_refuses_other_strategies() -> None:
    with pytest.raises(TypeError, match="expected a tfps"):
        ClusterCoordinator(tf.distribute.get_strategy())


def test_worker_that_dies_gives_its_closures_to_others(
    strategy: FakeStrategy, coordinator: ClusterCoordinator
) -> None:
    recorder = _Recorder(coordinator)
    session = strategy.session
    session.kill("worker", 1)

    def step(number: int) -> tuple[int, int]:
        if _worker_index() == 1:
            raise _unavailable("/job:worker/replica:0/task:1")
        return number, _worker_index()

    values = [coordinator.schedule(step, args=(n,)) for n in range(100)]
    # The dead worker is only detected when a closure runs there.
    while not recorder.of(events.WorkerLost):
        values.append(coordinator.schedule(step, args=(len(values),)))
    coordinator.join()
    assert coordinator.fetch(values) == [(n, 0) for n in range(len(values))]
    assert len(recorder.of(events.WorkerLost)) == 1
    assert coordinator.absent_workers == (1,)
    assert coordinator.counters.value("workers_lost") == 1


def test_worker_that_comes_back_takes_part_with_new_values(
    strategy: FakeStrategy, coordinator: ClusterCoordinator
) -> None:
    recorder = _Recorder(coordinator)
    session = strategy.session
    own = PerWorkerValues(lambda c: (c.worker_index, c.generation))
    both = threading.Barrier(2 * coordinator.num_lanes // 2)

    def meet(value: tuple[int, int]) -> tuple[int, int]:
        both.wait(_TIMEOUT_SECONDS)
        return value

    def step(value: tuple[int, int]) -> tuple[int, int]:
        if value == (1, 0):
            raise _unavailable("/job:worker/replica:0/task:1")
        return value

    first = [
        coordinator.schedule(meet, args=(own,))
        for _ in range(coordinator.num_lanes)
    ]
    assert set(coordinator.fetch(first)) == {(0, 0), (1, 0)}

    session.kill("worker", 1)
    while not recorder.of(events.WorkerLost):
        coordinator.schedule(step, args=(own,))
    session.start("worker", 1)
    event = recorder.wait_for(events.WorkerReadmitted)
    assert isinstance(event, events.WorkerReadmitted)
    assert (event.worker_index, event.generation) == (1, 1)
    coordinator.join()

    again = [
        coordinator.schedule(meet, args=(own,))
        for _ in range(coordinator.num_lanes)
    ]
    assert set(coordinator.fetch(again)) == {(0, 0), (1, 1)}
    assert session.log == ["delist worker 1", "readmit worker 1"]
    assert coordinator.absent_workers == ()


def test_worker_that_was_restarted_unnoticed(
    strategy: FakeStrategy, coordinator: ClusterCoordinator
) -> None:
    recorder = _Recorder(coordinator)
    strategy.session.start("worker", 0)

    def step() -> int:
        context = dispatch_context.current()
        assert context is not None
        if (context.worker_index, context.generation) == (0, 0):
            raise tf.errors.AbortedError(
                None, None, "Unable to find a context_id matching"
            )
        return 1

    while not recorder.of(events.WorkerLost):
        coordinator.schedule(step)
    recorder.wait_for(events.WorkerReadmitted)
    coordinator.join()
    (lost,) = recorder.of(events.WorkerLost)
    assert "restarted" in str(lost)


def test_transient_failure_is_run_again(
    coordinator: ClusterCoordinator,
) -> None:
    recorder = _Recorder(coordinator)
    num_runs = []

    def step() -> int:
        num_runs.append(1)
        if len(num_runs) < 3:
            raise _unavailable("/job:ps/replica:0/task:0")
        return 5

    assert coordinator.schedule(step).fetch(_TIMEOUT_SECONDS) == 5
    coordinator.join()
    assert len(recorder.of(events.ClosureRetried)) == 2
    assert coordinator.counters.value("closures_retried") == 2
    assert not recorder.of(events.WorkerLost)


def test_transient_failure_that_stays_is_raised(
    coordinator: ClusterCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pause_seconds", "rest_seconds"):
        monkeypatch.setattr(
            f"tfps_plugin.coordinator.members.failures.{name}", lambda _: 0.0
        )
    num_runs = []

    def step() -> None:
        num_runs.append(1)
        raise _unavailable("/job:worker/replica:0/task:0")

    coordinator.schedule(step)
    with pytest.raises(tf.errors.UnavailableError):
        coordinator.join()
    assert len(num_runs) == 6


def test_a_worker_that_an_earlier_connection_broke_is_taken_in_anew(
    strategy: FakeStrategy, coordinator: ClusterCoordinator
) -> None:
    recorder = _Recorder(coordinator)
    failed = threading.Event()

    def step() -> int:
        context = dispatch_context.current()
        assert context is not None
        if context.worker_index == 0 and context.generation == 0:
            failed.set()
            raise tf.errors.AbortedError(
                None,
                None,
                "Cleanup 2393 remote target /job:worker/replica:0/task:0",
            )
        # Otherwise the other worker might run all before this one begins.
        assert failed.wait(_TIMEOUT_SECONDS)
        return context.generation

    values = [coordinator.schedule(step) for _ in range(100)]
    coordinator.join()
    assert all(value.error is None for value in values)
    recorder.wait_for(events.WorkerReadmitted)
    (lost,) = recorder.of(events.WorkerLost)
    assert isinstance(lost, events.WorkerLost)
    assert lost.worker_index == 0


def test_a_worker_that_reaches_no_ps_uses_up_nobodys_retries(
    coordinator: ClusterCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    num_failures = []

    def step() -> int:
        context = dispatch_context.current()
        assert context is not None
        if context.worker_index == 0:
            num_failures.append(1)
            raise _unavailable("/job:ps/replica:0/task:0")
        return context.worker_index

    values = [coordinator.schedule(step) for _ in range(40)]
    coordinator.join()
    assert {value.fetch(_TIMEOUT_SECONDS) for value in values} == {1}
    # Each of its lanes fails a few times, and then pauses.
    assert len(num_failures) < 20


def test_ps_that_was_restarted(
    strategy: FakeStrategy, coordinator: ClusterCoordinator
) -> None:
    recorder = _Recorder(coordinator)
    strategy.session.start("ps", 0)

    def step() -> None:
        raise _unavailable("/job:ps/replica:0/task:0")

    def run() -> None:
        # The first of them may have failed before the last is scheduled.
        for _ in range(10):
            coordinator.schedule(step)
        coordinator.join()

    with pytest.raises(errors.ParameterServerLostError) as caught:
        run()
    text = str(caught.value)
    assert "Parameter server 0 at ps-0:1 was lost at" in text
    assert "last checkpoint" in text
    assert isinstance(caught.value.__cause__, tf.errors.UnavailableError)
    assert len(recorder.of(events.ParameterServerLost)) == 1


def test_ps_that_died_is_asked_again_before_it_is_given_up(
    strategy: FakeStrategy,
    coordinator: ClusterCoordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tfps_plugin.coordinator.members.inspector._PS_PROBE_INTERVAL_SECONDS",
        0.01,
    )
    strategy.session.kill("ps", 0)

    def step() -> None:
        raise _unavailable("/job:ps/replica:0/task:0")

    coordinator.schedule(step)
    with pytest.raises(errors.ParameterServerLostError, match="refused"):
        coordinator.join()


def test_all_workers_gone_and_one_comes_back(
    strategy: FakeStrategy, coordinator: ClusterCoordinator
) -> None:
    recorder = _Recorder(coordinator)
    session = strategy.session
    for index in range(2):
        session.kill("worker", index)

    def step() -> int:
        context = dispatch_context.current()
        assert context is not None
        if context.generation == 0:
            raise _unavailable(
                f"/job:worker/replica:0/task:{context.worker_index}"
            )
        return context.worker_index

    value = coordinator.schedule(step)
    recorder.wait_for(events.NoWorkerLeft)
    assert not value.is_ready()
    session.start("worker", 1)
    assert value.fetch(_TIMEOUT_SECONDS) == 1
    coordinator.join()


def test_all_workers_gone_for_too_long() -> None:
    session = FakeSession(num_workers=2)
    coordinator = ClusterCoordinator(
        FakeStrategy(session), no_worker_timeout_seconds=0.1
    )
    try:
        for index in range(2):
            session.kill("worker", index)

        def step() -> None:
            raise _unavailable(f"/job:worker/replica:0/task:{_worker_index()}")

        value = coordinator.schedule(step)
        with pytest.raises(errors.WorkerLostError) as caught:
            coordinator.join()
        text = str(caught.value)
        assert "worker 0 at worker-0:1: refused" in text
        assert "worker 1 at worker-1:1: refused" in text
        assert isinstance(value.error, errors.ClosureCancelledError)

        # Usable as soon as a worker is back.
        session.start("worker", 0)
        assert coordinator.schedule(_worker_index).fetch(_TIMEOUT_SECONDS) in (
            0,
            1,
        )
    finally:
        coordinator.close()


def test_value_of_a_worker_that_died_since(
    coordinator: ClusterCoordinator,
) -> None:
    class _FarTensor:
        def numpy(self) -> None:
            raise _unavailable("/job:worker/replica:0/task:1")

    value = coordinator.schedule(_FarTensor)
    coordinator.join()
    assert isinstance(value.get(), _FarTensor)
    with pytest.raises(errors.WorkerLostError, match="does not answer"):
        value.fetch()


def test_each_worker_reads_its_own_share(
    coordinator: ClusterCoordinator,
) -> None:
    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.range(100).shard(
            context.num_input_pipelines, context.input_pipeline_id
        )

    dataset = coordinator.create_per_worker_dataset(dataset_fn)
    iterator = iter(dataset)
    barrier = threading.Barrier(coordinator.num_lanes)

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        return next(iterator)

    def meet(own: Any) -> tuple[int, int]:
        barrier.wait(_TIMEOUT_SECONDS)
        return _worker_index(), step(own).numpy()

    values = [
        coordinator.schedule(meet, args=(iterator,))
        for _ in range(coordinator.num_lanes)
    ]
    assert sorted(coordinator.fetch(values)) == [
        (0, 0),
        (0, 2),
        (1, 1),
        (1, 3),
    ]
    assert coordinator.schedule(step, args=(iterator,)).fetch() in (4, 5)


def test_end_of_a_dataset_is_the_users_own_error(
    coordinator: ClusterCoordinator,
) -> None:
    iterator = iter(
        coordinator.create_per_worker_dataset(tf.data.Dataset.range(1))
    )

    @tf.function
    def step(iterator: Any) -> tf.Tensor:
        return next(iterator)

    for _ in range(3):
        coordinator.schedule(step, args=(iterator,))
    with pytest.raises(tf.errors.OutOfRangeError):
        coordinator.join()

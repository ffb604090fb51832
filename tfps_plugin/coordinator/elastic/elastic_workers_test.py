"""Tests of adding and removing workers, on a cluster without processes."""

import threading
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.lanes import first_calls
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.monitoring import events
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.per_worker.worker_resident import Residents

_TIMEOUT_SECONDS = 30.0


@pytest.fixture
def session() -> FakeSession:
    return FakeSession(num_workers=2, num_ps=1)


@pytest.fixture
def coordinator(session: FakeSession) -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(FakeStrategy(session))
    yield made
    made.close()


def _worker_index() -> int:
    return dispatch_context.required().worker_index


def _join(coordinator: ClusterCoordinator, session: FakeSession) -> int:
    """Adds a worker, and waits until it takes part."""
    joined = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerJoined):
            assert event.was_added
            joined.set()

    unsubscribe = coordinator.events.subscribe(note)
    index = coordinator.add_worker("new:1")
    session.start("worker", index)
    assert joined.wait(_TIMEOUT_SECONDS)
    unsubscribe()
    return index


def test_a_worker_that_is_added_runs_functions(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    index = _join(coordinator, session)
    assert index == 2
    assert coordinator.num_workers == 3
    assert coordinator.schedule_on(index, _worker_index).fetch() == 2
    with pytest.raises(errors.ClusterConfigurationError, match="worker 2"):
        coordinator.add_worker("new:1")


def test_a_worker_that_is_removed_ends_what_it_runs(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def run() -> int:
        begun.set()
        assert go_on.wait(_TIMEOUT_SECONDS)
        return _worker_index()

    value = coordinator.schedule_on(0, run)
    assert begun.wait(_TIMEOUT_SECONDS)
    waiting = coordinator.schedule_on(0, _worker_index)
    with pytest.raises(TimeoutError, match="Worker 0 still runs"):
        coordinator.remove_worker(0, timeout_seconds=0.1)
    assert list(coordinator.worker_indices) == [0, 1]
    thread = threading.Thread(target=coordinator.remove_worker, args=(0,))
    thread.start()
    go_on.set()
    thread.join(_TIMEOUT_SECONDS)
    assert not thread.is_alive()
    assert value.fetch() == 0
    assert waiting.fetch() == 0, "only this worker may run it"
    assert list(coordinator.worker_indices) == [1]
    assert not coordinator.absent_workers
    assert session.log == ["delist worker 0", "let go worker 0"]
    values = [coordinator.schedule(_worker_index) for _ in range(8)]
    assert coordinator.fetch(values) == [1] * 8
    assert coordinator.counters.value("closures_retried") == 0
    with pytest.raises(ValueError, match=r"one of \[1\]|to 0"):
        coordinator.schedule_on(0, _worker_index)


def test_a_worker_that_is_used_stays(coordinator: ClusterCoordinator) -> None:
    use = coordinator.use_present()
    assert use.workers == [0, 1]
    with pytest.raises(TimeoutError):
        coordinator.remove_worker(1, timeout_seconds=0.1)
    thread = threading.Thread(target=coordinator.remove_worker, args=(1,))
    thread.start()
    use.release()
    thread.join(_TIMEOUT_SECONDS)
    assert coordinator.use_present().workers == [0]


def test_a_removed_worker_comes_back_with_its_index(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    coordinator.remove_worker(1)
    joined = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerJoined):
            joined.set()

    coordinator.events.subscribe(note)
    assert coordinator.add_worker("worker-1:1") == 1
    # The process that was told to end still answers.
    session.start("worker", 1)
    assert joined.wait(_TIMEOUT_SECONDS)
    assert coordinator.schedule_on(1, _worker_index).fetch() == 1


def test_an_absent_worker_can_be_removed(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    index = coordinator.add_worker("new:1")
    assert list(coordinator.absent_workers) == [2]
    coordinator.remove_worker(index)
    assert list(coordinator.worker_indices) == [0, 1]
    assert not coordinator.absent_workers


def test_the_last_worker_stays(coordinator: ClusterCoordinator) -> None:
    coordinator.remove_worker(0)
    with pytest.raises(ValueError, match="last worker"):
        coordinator.remove_worker(1)


def test_a_worker_may_be_lost_while_it_leaves(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    ran_on: list[int] = []

    def run() -> None:
        ran_on.append(_worker_index())
        if len(ran_on) == 1:
            begun.set()
            assert go_on.wait(_TIMEOUT_SECONDS)
            raise tf.errors.UnavailableError(
                None,
                None,
                "failed to connect to all addresses\nAdditional GRPC error "
                "information from remote target "
                f"/job:worker/replica:0/task:{ran_on[0]} while calling Enqueue",
            )

    value = coordinator.schedule(run)
    assert begun.wait(_TIMEOUT_SECONDS)
    leaving = ran_on[0]
    thread = threading.Thread(target=coordinator.remove_worker, args=(leaving,))
    thread.start()
    session.kill("worker", leaving)
    go_on.set()
    thread.join(_TIMEOUT_SECONDS)
    assert not thread.is_alive()
    value.get()
    assert ran_on == [leaving, 1 - leaving]
    assert list(coordinator.worker_indices) == [1 - leaving]
    assert coordinator.counters.value("workers_lost") == 1


def test_a_worker_that_functions_of_others_need_leaves_after_them(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    num_begun: list[int] = []

    def run() -> None:
        num_begun.append(_worker_index())
        begun.set()
        assert go_on.wait(_TIMEOUT_SECONDS)

    # Bound, because it must not run on the worker that it names.
    value = coordinator.schedule_on(1, first_calls.exclusive(run, workers={0}))
    assert begun.wait(_TIMEOUT_SECONDS)
    with pytest.raises(TimeoutError, match="Worker 0 still runs"):
        coordinator.remove_worker(0, timeout_seconds=0.1)
    thread = threading.Thread(target=coordinator.remove_worker, args=(0,))
    thread.start()
    go_on.set()
    thread.join(_TIMEOUT_SECONDS)
    assert not thread.is_alive()
    value.get()
    assert num_begun == [1]
    assert list(coordinator.worker_indices) == [1]


def test_functions_that_need_a_removed_worker_fail_at_once(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    coordinator.remove_worker(0)
    coordinator.schedule(first_calls.exclusive(_worker_index, workers={0}))
    with pytest.raises(errors.PlacementError, match="on worker 0"):
        coordinator.join()
    assert coordinator.schedule(_worker_index).fetch() == 1


def test_a_worker_leaves_without_the_steps_of_fit(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    """They may wait until it has left, because they name it."""

    class Counter:
        released: tuple[int, ...] = ()

        def release_worker(self, worker_index: int) -> None:
            steps_in_flight.finish()
            self.released += (worker_index,)

        def forget_worker(self, worker_index: int) -> None:
            pass

    def never() -> None:
        raise AssertionError("Steps in flight were waited for.")

    counter = Counter()
    session.connection.part(Residents).add(counter)
    with steps_in_flight.finishing(never):
        coordinator.remove_worker(0)
    assert counter.released == (0,)


def test_a_worker_that_cannot_leave_takes_part_again(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    class Broken:
        def release_worker(self, worker_index: int) -> None:
            raise RuntimeError("It cannot be released.")

        def forget_worker(self, worker_index: int) -> None:
            pass

    broken = Broken()
    session.connection.part(Residents).add(broken)
    with pytest.raises(RuntimeError, match="cannot be released"):
        coordinator.remove_worker(0)
    assert list(coordinator.worker_indices) == [0, 1]
    names_it = first_calls.exclusive(_worker_index, workers={0})
    assert coordinator.schedule_on(1, names_it).fetch() == 1
    assert coordinator.schedule_on(0, _worker_index).fetch() == 0


def _unreachable() -> tf.errors.OpError:
    return tf.errors.UnavailableError(
        None,
        None,
        "failed to connect to all addresses\nAdditional GRPC error information "
        "from remote target /job:worker/replica:0/task:0 while calling Enqueue",
    )


class _Result:
    """A result on worker 0, like a variable."""

    def __init__(self, *, is_lost: bool) -> None:
        self.num_fetched = 0
        self._is_lost = is_lost

    def numpy(self) -> int:
        self.num_fetched += 1
        if self._is_lost:
            raise _unreachable()
        return 7


def test_results_that_were_lost_hold_up_no_later_ones(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    is_back = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, events.WorkerReadmitted):
            is_back.set()

    def fail() -> None:
        raise _unreachable()

    coordinator.events.subscribe(note)
    gone, later = (_Result(is_lost=is_lost) for is_lost in (True, False))
    first = coordinator.schedule_on(0, lambda: gone)
    assert first.get(_TIMEOUT_SECONDS) is gone
    session.kill("worker", 0)
    with pytest.raises(errors.ClosureCancelledError):
        coordinator.schedule_on(0, fail).get(_TIMEOUT_SECONDS)
    session.start("worker", 0)
    assert is_back.wait(_TIMEOUT_SECONDS)
    second = coordinator.schedule_on(0, lambda: later)
    assert second.get(_TIMEOUT_SECONDS) is later
    coordinator.remove_worker(0)
    assert [gone.num_fetched, later.num_fetched] == [0, 1]
    assert second.fetch() == 7

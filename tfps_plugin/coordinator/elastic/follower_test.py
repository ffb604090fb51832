"""Tests of following a cluster resolver, on a cluster without processes."""

import queue
import threading
import time
import types
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.elastic.follower import Follower
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy
from tfps_plugin.monitoring import events

_TIMEOUT_SECONDS = 30.0
_PS = ("ps-0:1", "ps-1:1", "ps-2:1")


@pytest.fixture
def session() -> FakeSession:
    return FakeSession(num_workers=2, num_ps=1)


@pytest.fixture
def coordinator(session: FakeSession) -> Iterator[ClusterCoordinator]:
    made = ClusterCoordinator(FakeStrategy(session))
    follower = Follower(interval_seconds=0.01)
    follower.start(made)
    yield made
    follower.stop(_TIMEOUT_SECONDS)
    made.close()


def _waiter(
    coordinator: ClusterCoordinator, kind: type[events.Event]
) -> Callable[[], bool]:
    seen = threading.Event()

    def note(event: events.Event) -> None:
        if isinstance(event, kind):
            seen.set()

    coordinator.events.subscribe(note)
    return lambda: seen.wait(_TIMEOUT_SECONDS)


def test_workers_come_and_go_as_described(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    workers = session.cluster.worker_addresses
    ps = session.cluster.ps_addresses
    joined = _waiter(coordinator, events.WorkerJoined)
    session.starts_with_addition = True
    session.described = ClusterSpec((*workers, "new:1"), ps)
    assert joined()
    assert list(coordinator.worker_indices) == [0, 1, 2]
    left = _waiter(coordinator, events.WorkerLeft)
    session.described = ClusterSpec(workers, ps)
    assert left()
    assert list(coordinator.worker_indices) == [0, 1]


class _Resharder:
    """Stands in for what moves variables: there are none.

    Attributes:
        on_copy: Called while they would be copied.
    """

    def __init__(self) -> None:
        self.on_copy: Callable[[tuple[Task, ...]], None] = lambda tasks: None

    def require_number(self, number: int) -> None:
        """Allows any number of parameter servers."""

    def begin(self, tasks: tuple[Task, ...]) -> Any:
        """Begins to move to some parameter servers."""
        return types.SimpleNamespace(
            copy=lambda: self.on_copy(tasks),
            complete=lambda: None,
            go_on=lambda: 0,
        )


@pytest.fixture
def resharder(coordinator: ClusterCoordinator) -> _Resharder:
    made = _Resharder()
    strategy: Any = coordinator.strategy
    strategy.resharder = made
    strategy.values_lock = threading.RLock()
    return made


class _ChangesOfPs:
    """Indices of the parameter servers, after each change of them."""

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        self._coordinator = coordinator
        self._seen: queue.SimpleQueue[tuple[int, ...]] = queue.SimpleQueue()
        coordinator.events.subscribe(self._note)

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.ParameterServersChanged):
            self._seen.put(event.ps_indices)

    @property
    def is_empty(self) -> bool:
        """True if there is none."""
        return self._seen.empty()

    def get(self) -> tuple[int, ...]:
        """Returns the next; the program goes on meanwhile."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            assert self._coordinator.done()
            try:
                return self._seen.get(timeout=0.01)
            except queue.Empty:
                assert time.monotonic() < deadline, "no change"


@pytest.fixture
def changes_of_ps(
    coordinator: ClusterCoordinator, resharder: _Resharder
) -> _ChangesOfPs:
    return _ChangesOfPs(coordinator)


def test_parameter_servers_come_and_go_as_described(
    session: FakeSession,
    changes_of_ps: _ChangesOfPs,
) -> None:
    workers = session.cluster.worker_addresses
    session.starts_with_addition = True
    for numbers in ((2, 3), (2, 1), (2,)):
        session.described = ClusterSpec(workers, _PS[: numbers[-1]])
        for number in numbers:
            indices = changes_of_ps.get()
            assert indices == tuple(range(number))
    assert session.log.count("let go ps 2") == 1
    assert session.log.count("let go ps 1") == 1


def test_the_parameter_servers_that_are_described_last_count(
    session: FakeSession,
    resharder: _Resharder,
    changes_of_ps: _ChangesOfPs,
) -> None:
    workers = session.cluster.worker_addresses
    session.starts_with_addition = True

    def describe_fewer(tasks: tuple[Task, ...]) -> None:
        if len(tasks) == 2:
            session.described = ClusterSpec(workers, _PS[:1])

    # Two are to be added, and none of them any more while the first is.
    resharder.on_copy = describe_fewer
    session.described = ClusterSpec(workers, _PS)
    assert changes_of_ps.get() == (0, 1)
    assert changes_of_ps.get() == (0,)
    assert len(session.cluster.ps_addresses) == 2


def test_a_parameter_server_that_does_not_answer_holds_nothing_back(
    coordinator: ClusterCoordinator,
    session: FakeSession,
    changes_of_ps: _ChangesOfPs,
) -> None:
    workers = session.cluster.worker_addresses
    left = _waiter(coordinator, events.WorkerLeft)
    session.described = ClusterSpec(workers[:1], _PS[:2])
    assert left()
    assert changes_of_ps.is_empty
    session.starts_with_addition = True
    assert changes_of_ps.get() == (0, 1)


def test_a_change_that_fails_is_told_of_and_others_are_made(
    session: FakeSession,
    resharder: _Resharder,
    coordinator: ClusterCoordinator,
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_failed = threading.Event()
    joined = _waiter(coordinator, events.WorkerJoined)

    def fail(tasks: tuple[Task, ...]) -> None:
        has_failed.set()
        raise ValueError("no space is left")

    resharder.on_copy = fail
    session.starts_with_addition = True
    workers = session.cluster.worker_addresses
    session.described = ClusterSpec(workers, _PS[:2])
    assert has_failed.wait(_TIMEOUT_SECONDS)
    session.described = ClusterSpec((*workers, "new:1"), _PS[:2])
    assert joined()
    assert "no space is left" in caplog.text
    assert coordinator.ps_indices == (0,)


def test_tasks_whose_order_is_not_told_are_asked(
    coordinator: ClusterCoordinator, session: FakeSession
) -> None:
    workers, ps = session.cluster.worker_addresses, session.cluster.ps_addresses
    joined = _waiter(coordinator, events.WorkerJoined)
    session.starts_with_addition = True
    session.names = {
        "x:1": "/job:worker/replica:0/task:3",
        "y:1": "/job:worker/replica:0/task:2",
    }
    session.described = ClusterSpec(("x:1", "y:1", *workers), ps)
    assert joined()
    assert session.cluster.worker_addresses[2] == "y:1"
    # The answers of other jobs are none.
    session.names = {"z:1": "/job:ps/replica:0/task:4"}
    left = _waiter(coordinator, events.WorkerLeft)
    session.described = ClusterSpec(("z:1", "x:1", *workers), ps)
    session.described = ClusterSpec(("x:1", *workers), ps)
    assert left()
    assert list(coordinator.worker_indices) == [0, 1, 3]
    assert session.cluster.worker_addresses == (*workers, "y:1", "x:1")

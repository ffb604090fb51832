"""Tests of the session with a fake runtime and fake tasks."""

import logging
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import pytest

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_cluster
from tfps_plugin.cluster import environment
from tfps_plugin.cluster import health
from tfps_plugin.cluster.chief import attachment
from tfps_plugin.cluster.chief import connections
from tfps_plugin.cluster.chief import free_workers
from tfps_plugin.cluster.chief import leftovers
from tfps_plugin.cluster.chief import runtime_view
from tfps_plugin.cluster.chief import session as session_module
from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.chief.session import Session
from tfps_plugin.cluster.health import TaskStatus
from tfps_plugin.cluster.serving import mailbox
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_TIMEOUT_SECONDS = 30.0
# For changes that hang; a busy machine takes longer for others.
_HANGING_SECONDS = 0.05
_CLUSTER = ClusterSpec(("w0:1", "w1:1"), ("p0:1",))
_CHIEF = "127.0.0.1:7"


class _World:
    """Tasks and a runtime that do what a test says.

    Attributes:
        silent: Addresses that do not answer.
        incarnations: Incarnations of restarted tasks, by address.
        devices: Names of the devices of every task.
        posted: Addresses that received a message.
        freed: Addresses of tasks that were told to free leftovers.
        num_updates: Number of changes that TensorFlow has begun.
        probe_seconds: Time that a task takes to answer.
        attached: Receives the tasks that TensorFlow first connects to.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.silent: set[str] = set()
        self.incarnations: dict[str, int] = {}
        self.devices: tuple[str, ...] = ()
        self.posted: list[str] = []
        self.freed: list[str] = []
        self.num_updates = 0
        self.probe_seconds = 0.0
        self.attached: Callable[[frozenset[Task]], None] = lambda tasks: None
        self.most_at_once = 0
        self._go_on = threading.Event()
        self.go_on()
        self._at_once = 0
        self._lock = threading.Lock()

    def probe(self, address: str, timeout_seconds: float) -> TaskStatus:
        time.sleep(self.probe_seconds)
        if address in self.silent:
            raise errors.TaskUnreachableError(
                "nobody", address=address, reason="silent"
            )
        return TaskStatus(self.devices, self.incarnations.get(address, 1))

    def probe_task(self, task: Task, timeout_seconds: float) -> TaskStatus:
        return self.probe(task.address, timeout_seconds)

    def probe_all(
        self, tasks: Iterable[Task], timeout_seconds: float
    ) -> dict[Task, TaskStatus | errors.TaskUnreachableError]:
        answers: dict[Task, TaskStatus | errors.TaskUnreachableError] = {}
        for task in tasks:
            try:
                answers[task] = self.probe_task(task, timeout_seconds)
            except errors.TaskUnreachableError as error:
                answers[task] = error
        return answers

    def attach(
        self, cluster: ClusterSpec, tasks: Iterable[Task], earlier: object
    ) -> str:
        self.attached(frozenset(tasks))
        return _CHIEF

    def update(self, server_def: object) -> None:
        with self._lock:
            self.num_updates += 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        self._go_on.wait(_TIMEOUT_SECONDS)
        with self._lock:
            self._at_once -= 1

    def hang(self) -> None:
        """Lets changes hang, and be given up soon."""
        self._go_on.clear()
        self._limit_changes(_HANGING_SECONDS)

    def go_on(self) -> None:
        """Lets changes end, also those that were given up."""
        self._limit_changes(_TIMEOUT_SECONDS)
        self._go_on.set()
        this_process.state.changes.wait(_TIMEOUT_SECONDS)

    def _limit_changes(self, seconds: float) -> None:
        for name in (
            "_CHANGE_TIMEOUT_SECONDS",
            "_EARLIER_CHANGE_TIMEOUT_SECONDS",
        ):
            self._monkeypatch.setattr(runtime_view, name, seconds)

    def free(self, tasks: Iterable[Task]) -> None:
        self.freed += [task.address for task in tasks]

    def post(self, task: Task, text: str, timeout_seconds: float) -> None:
        self.posted.append(task.address)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[_World]:
    monkeypatch.setattr(this_process, "state", this_process.ThisProcess())
    made = _World(monkeypatch)
    for name in ("probe", "probe_task", "probe_all"):
        monkeypatch.setattr(health, name, getattr(made, name))
    monkeypatch.setattr(mailbox, "post", made.post)
    monkeypatch.setattr(leftovers, "free", made.free)
    monkeypatch.setattr(tensorflow_cluster, "update_server_def", made.update)
    monkeypatch.setattr(attachment, "attach", made.attach)
    monkeypatch.setattr(attachment, "earlier_state", lambda _: None)
    monkeypatch.setattr(environment, "apply_chief_environment", lambda _: None)
    monkeypatch.setattr(free_workers, "prepare", lambda _: None)
    monkeypatch.setattr(free_workers, "wait_for", lambda *_: None)
    yield made
    made.go_on()


@pytest.fixture
def connect(world: _World) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def connect(
        min_workers: int | None = None, timeout_seconds: float = 300.0
    ) -> Session:
        sessions.append(
            Session.connect(
                _CLUSTER,
                min_workers=min_workers,
                timeout_seconds=timeout_seconds,
            )
        )
        return sessions[-1]

    yield connect
    world.go_on()
    for session in sessions:
        session.close()


def test_what_an_earlier_chief_has_left_on_a_ps_is_freed(
    world: _World, connect: Callable[..., Session]
) -> None:
    session = connect()
    assert world.freed == ["p0:1"]
    for task in session.cluster.serving_tasks:
        session.readmit(task)
    assert world.freed == ["p0:1", "p0:1"]


def test_it_says_that_the_cluster_has_changed(world: _World) -> None:
    session = Session.connect(_CLUSTER)
    seen = [session.num_changes]
    worker = session.cluster.workers[0]
    for change in (session.delist, session.readmit):
        change(worker)
        seen.append(session.num_changes)
    assert len(set(seen)) == 3
    # During a change the value differs from those before and after it.
    _let_a_change_hang(world, session, worker)
    seen.append(session.num_changes)
    world.go_on()
    seen.append(session.num_changes)
    assert len(set(seen)) == 5


def test_a_worker_without_devices_of_replicas_is_not_taken_in(
    world: _World, connect: Callable[..., Session]
) -> None:
    session = connect()
    asked: list[tuple[str, ...]] = []

    def missing(devices: Sequence[str]) -> list[str]:
        asked.append(tuple(devices))
        needed = ("/device:CPU:0", "/device:CPU:1")
        return [each for each in needed if each not in devices]

    session.missing_devices = missing
    worker = session.cluster.workers[1]
    session.delist(worker)
    num_updates = world.num_updates
    world.devices = ("/device:CPU:0",)
    with pytest.raises(
        errors.TaskUnreachableError,
        match=r"worker 1 cannot be taken in: it lacks /device:CPU:1, which "
        r"replicas of a worker compute on\. Received: devices=/device:CPU:0",
    ) as raised:
        session.readmit(worker)
    assert raised.value.reason.startswith("it lacks /device:CPU:1")
    assert worker not in session.listed
    assert world.num_updates == num_updates, "nothing was changed"
    # Parameter servers compute no replica.
    session.readmit(session.cluster.task("ps", 0))
    world.devices = ("/device:CPU:0", "/device:CPU:1")
    session.readmit(worker)
    assert worker in session.listed
    assert asked == [("/device:CPU:0",), ("/device:CPU:0", "/device:CPU:1")]


def test_a_slow_chief_fails_no_readmission(
    world: _World, connect: Callable[..., Session]
) -> None:
    session = connect()
    worker = session.cluster.workers[1]
    session.delist(worker)
    world.silent.add(_CHIEF)
    world.posted.clear()
    session.readmit(worker)
    assert worker in session.listed
    assert world.posted == [worker.address]


def test_a_task_that_cannot_be_told_fails_no_readmission(
    world: _World,
    connect: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(task: Task, text: str, timeout_seconds: float) -> None:
        raise RuntimeError("no letters, please")

    session = connect()
    worker = session.cluster.workers[1]
    session.delist(worker)
    monkeypatch.setattr(mailbox, "post", refuse)
    with caplog.at_level(logging.WARNING, "tfps_plugin.cluster"):
        session.readmit(worker)
    assert worker in session.listed
    assert "worker 1 at w1:1 was not told which chief" in caplog.text


def test_a_connection_that_fails_leaves_nothing_behind(
    world: _World,
    connect: Callable[..., Session],
) -> None:
    world.silent.add(_CHIEF)
    with pytest.raises(errors.TaskUnreachableError):
        connect()
    assert this_process.state.session is None
    assert world.posted == []
    assert world.num_updates == 1, "TensorFlow was told to forget the tasks"

    world.silent.clear()
    session = connect()
    assert connect() is session
    assert this_process.state.session is session


@pytest.mark.parametrize("job", ["worker", "ps"])
@pytest.mark.parametrize("was_taken_out", [True, False])
def test_connecting_again_takes_back_what_was_restarted(
    world: _World,
    connect: Callable[..., Session],
    job: str,
    was_taken_out: bool,
) -> None:
    session = connect()
    task = session.cluster.task(job, 0)
    if was_taken_out:
        session.delist(task)
    world.incarnations[task.address] = 2
    assert connect() is session
    assert task in session.listed
    assert session.incarnation(task) == 2
    num_updates = world.num_updates
    assert connect() is session
    assert world.num_updates == num_updates, "nobody was replaced since"


def test_a_worker_that_is_late_is_taken_in_when_it_answers(
    world: _World,
    connect: Callable[..., Session],
    caplog: pytest.LogCaptureFixture,
) -> None:
    late = _CLUSTER.workers[1]
    world.silent.add(late.address)
    attached: list[frozenset[Task]] = []
    world.attached = attached.append
    session = connect(min_workers=1)
    everybody = frozenset(_CLUSTER.serving_tasks)
    assert attached == [everybody - {late}]
    assert session.listed == everybody - {late}
    assert session.device(late) == f"{late.name}/device:CPU:0"
    assert not session.is_same_incarnation(late)
    assert late.address not in world.posted
    (line,) = (m for m in caplog.messages if "Missing" in m)
    assert f"{late} at {late.address}: silent" in line
    assert "were not told" not in caplog.text

    with pytest.raises(errors.TaskUnreachableError):
        session.readmit(late)
    world.silent.clear()
    session.readmit(late)
    assert session.listed == everybody
    assert session.is_same_incarnation(late)
    assert late.address in world.posted

    # Another coordinator of the session already uses it.
    num_updates = world.num_updates
    session.readmit(late, unless_listed=True)
    assert world.num_updates == num_updates
    world.incarnations[late.address] = 2
    session.readmit(late, unless_listed=True)
    assert session.is_same_incarnation(late)


def test_too_few_workers(
    world: _World, connect: Callable[..., Session]
) -> None:
    world.silent |= {task.address for task in _CLUSTER.workers}
    with pytest.raises(errors.ClusterStartTimeoutError, match="min_workers=1"):
        connect(min_workers=1, timeout_seconds=0.01)


def test_the_order_of_a_list_makes_no_other_cluster(
    connect: Callable[..., Session],
) -> None:
    session = connect()
    session.add_worker("w2:1")
    workers = ("w2:1", "w0:1", "w1:1")
    assert Session.connect(ClusterSpec(workers, ("p0:1",))) is session
    other = Session.connect(ClusterSpec(("w2:1", "w0:1"), ("p0:1",)))
    assert other is not session
    other.close()


def test_connecting_again_waits_for_no_worker(
    world: _World, connect: Callable[..., Session]
) -> None:
    session = connect()
    worker = session.cluster.workers[0]
    session.delist(worker)
    world.silent.add(worker.address)
    assert connect() is session
    assert worker not in session.listed


@pytest.mark.parametrize("timeout_seconds", [2.0, 300.0])
def test_only_workers_that_answer_are_tried_for_another_strategy(
    world: _World,
    connect: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    timeout_seconds: float,
) -> None:
    tried: list[tuple[list[Task], float, float]] = []

    def wait_for(
        tasks: list[Task],
        seconds: float,
        answering: Callable[[list[Task], float], list[Task]],
        since: float,
    ) -> None:
        tried.append((tasks, seconds, time.monotonic() - since))
        world.silent.add(_CLUSTER.workers[1].address)
        assert answering(tasks, 1.0) == []

    monkeypatch.setattr(free_workers, "wait_for", wait_for)
    session = connect()
    assert not tried
    hanging, other = session.cluster.workers
    world.silent.add(hanging.address)
    world.probe_seconds = 0.3
    assert connect(timeout_seconds=timeout_seconds) is session
    ((tasks, seconds, passed_seconds),) = tried
    assert tasks == [other]
    # The time so far counts: the ps and the workers were asked.
    assert seconds == timeout_seconds
    assert passed_seconds >= 0.6
    assert "does not wait for worker 0 at w0:1: no answer" in caplog.text
    assert "w1:1" not in caplog.text
    assert hanging in session.listed


def test_changes_never_overlap(
    world: _World, connect: Callable[..., Session]
) -> None:
    session = connect()
    first, second = session.cluster.workers
    _let_a_change_hang(world, session, first)
    world.silent.add(second.address)
    for change in (session.delist, session.readmit):
        with pytest.raises(
            errors.TaskLostError,
            match=r"an earlier one.* no answer from worker 1 at w1:1 \(silent",
        ):
            change(first)
    assert first in session.listed
    assert world.num_updates == 1

    # The change finally ends, and its end is known; nothing is left to do.
    world.go_on()
    assert first not in session.listed
    assert session.delist(first) == frozenset()
    session.readmit(first)
    assert first in session.listed
    assert world.most_at_once == 1


def test_closing_does_not_overlap_a_change_either(
    world: _World,
    connect: Callable[..., Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "_DETACH_TIMEOUT_SECONDS", 0.05)
    session = connect()
    _let_a_change_hang(world, session, session.cluster.workers[0])
    session.close()
    assert world.num_updates == 1


def _let_a_change_hang(world: _World, session: Session, task: Task) -> None:
    world.hang()
    before = world.num_updates
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    # On a busy machine it may be given up before its thread has begun it.
    while world.num_updates == before:
        assert time.monotonic() < deadline, "no change has begun"
        with pytest.raises(errors.TaskLostError, match="did not end"):
            session.delist(task)


@pytest.mark.parametrize("is_quiet", [True, False])
def test_the_next_cluster_ends_what_runs_for_the_first(
    world: _World, monkeypatch: pytest.MonkeyPatch, is_quiet: bool
) -> None:
    broken: list[str] = []
    monkeypatch.setattr(connections, "break_to", broken.extend)
    first = Session.connect(_CLUSTER)
    told: list[str] = []

    def end(error: errors.StrategySupersededError) -> bool:
        told.append(str(error))
        # TensorFlow still knows the tasks of the first cluster.
        assert not world.num_updates
        return is_quiet

    first.connection.on_end(end)
    second = Session.connect(ClusterSpec(("w0:1",), ("p0:1",)))
    assert len(told) == 1
    assert "superseded by a newer strategy" in told[0]
    assert broken == ([] if is_quiet else ["w0:1", "w1:1", "p0:1"])
    with pytest.raises(errors.StrategySupersededError):
        first.connection.require()
    second.connection.require()
    second.close()
    with pytest.raises(errors.StrategySupersededError, match="with its clus"):
        second.connection.require()

"""Tests of spans, with members and parameter servers of this process."""

import collections
import threading
from collections.abc import Callable
from typing import Any
from typing import cast

import pytest
import tensorflow as tf

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.training.synchronous import span as spans
from tfps_plugin.training.synchronous.span import Span
from tfps_plugin.training.synchronous.spans import Spans
from tfps_plugin.variables import testing

_SECONDS = 20.0
_STEPS = 7
_NOT_TOLD = tf.errors.UnavailableError(None, None, "not told")


class _Value:
    """The future result of a closure."""

    def __init__(self) -> None:
        self.has_ended = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def on_ended(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self.has_ended.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def end(self) -> None:
        with self._lock:
            self.has_ended.set()
        for callback in self._callbacks:
            callback()


class _Coordinator:
    """Runs each closure on a thread; cancels or refuses some workers."""

    def __init__(
        self,
        cancels: set[int] | None = None,
        refuses: dict[int, BaseException] | None = None,
    ) -> None:
        self._cancels = cancels or set()
        self._refuses = refuses or {}
        self.threads: list[threading.Thread] = []
        self.raised: dict[int, BaseException] = {}

    def schedule_on(self, worker: int, function: Callable[[], None]) -> _Value:
        if worker in self._refuses:
            raise self._refuses[worker]
        value = _Value()
        if worker in self._cancels:
            value.end()
            return value

        def run() -> None:
            context = dispatch_context.DispatchContext(
                worker, worker, 1, testing.LOCAL_DEVICE
            )
            try:
                with dispatch_context.dispatching(context):
                    function()
            except BaseException as error:
                self.raised[worker] = error
            value.end()

        thread = threading.Thread(target=run)
        self.threads.append(thread)
        thread.start()
        return value


class _Cluster:
    """Queues of parameter servers, and the functions that wait at them.

    A ps has applied all steps when each member has finished or left.

    Attributes:
        leave_fails: Number of times that a ps cannot be told that a worker has
            left, by worker and ps.
        leave_error: What these calls raise.
        renewed_in_use: Whether queues were replaced while a call used them.
    """

    num_workers = 3

    def __init__(self, num_ps: int = 2) -> None:
        self._changed = threading.Condition()
        self._num_ps = num_ps
        self.finished: set[int] = set()
        self.left: list[tuple[int, int]] = []
        self.tried: collections.Counter[tuple[int, int]] = collections.Counter()
        self.leave_fails: dict[tuple[int, int], int] = {}
        self.leave_error: Exception = _NOT_TOLD
        self.closed: list[int] = []
        self.renewed: list[int] = []
        self.renewed_in_use = False
        self._num_waiting = 0
        self.calls: list[dict[str, Any]] = []

    def note_finished(self, worker: int) -> None:
        with self._changed:
            self.finished.add(worker)
            self._changed.notify_all()

    def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Waits as at a queue: it raises an exception once that is closed."""
        with self._changed:
            self._num_waiting += 1
            has_ended = self._changed.wait_for(
                lambda: is_true() or bool(self.closed), _SECONDS
            )
            self._num_waiting -= 1
            assert has_ended
            if not is_true():
                raise tf.errors.CancelledError(None, None, "closed")

    # As `GlobalStep`.

    def leave(self, worker: int, ps: int) -> None:
        with self._changed:
            self.tried[worker, ps] += 1
            if self.tried[worker, ps] <= self.leave_fails.get((worker, ps), 0):
                raise self.leave_error
            self.left.append((worker, ps))
            self._changed.notify_all()

    def close_queues(self, ps: int) -> None:
        with self._changed:
            self.closed.append(ps)
            self._changed.notify_all()

    def renew_queues(self, ps: int) -> None:
        with self._changed:
            self.renewed.append(ps)
            self.renewed_in_use |= bool(self._num_waiting)
            self._changed.notify_all()

    def apply(
        self, ps: int, first: Any, last: Any, members: Any, values: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        whom = {n for n, is_member in enumerate(members) if is_member}
        with self._changed:
            self.calls.append({"ps": ps, "members": whom, "values": values})
        self.wait_until(
            lambda: whom <= self.finished | {w for w, p in self.left if p == ps}
        )
        assert int(first) == 0
        return tf.identity(last), members


class _Applier:
    device = testing.LOCAL_DEVICE

    def __init__(self, function: Callable[..., Any], scalars: Any = ()) -> None:
        self.function = function
        self.scalars = list(scalars)
        self.num_emptied = 0
        self.empty_error: BaseException | None = None

    def empty(self) -> None:
        self.num_emptied += 1
        if self.empty_error is not None:
            raise self.empty_error


class _Ended:
    """Notices the end of a span."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self._event.set()

    def wait(self) -> None:
        assert self._event.wait(_SECONDS)


@pytest.fixture
def cluster() -> _Cluster:
    return _Cluster()


@pytest.fixture
def ended() -> _Ended:
    return _Ended()


def _run(
    cluster: _Cluster,
    ended: _Ended,
    make: Callable[[int, int], bool],
    *,
    coordinator: _Coordinator | None = None,
    appliers: list[_Applier] | None = None,
    relay: Callable[[], Any] | None = None,
    referee: Callable[..., Any] | None = None,
    members: tuple[int, ...] = (0, 2),
) -> Span:
    """Runs a span to its end."""
    coordinator = coordinator or _Coordinator()
    stand_ins: Any = {"coordinator": coordinator, "step": cluster}

    def of_ps(ps: int) -> _Applier:
        return _Applier(lambda *arguments: cluster.apply(ps, *arguments))

    span = Span(
        **stand_ins,
        appliers=cast(
            Any, [of_ps(0), of_ps(1)] if appliers is None else appliers
        ),
        relay=relay,
        referee=referee,
        members=members,
        num_steps=_STEPS,
        make=make,
        on_ended=ended,
    )
    span.start()
    ended.wait()
    assert span.has_ended
    assert not cluster.renewed_in_use
    for thread in coordinator.threads:
        thread.join(_SECONDS)
        assert not thread.is_alive()
    return span


def test_members_and_ps_make_all_steps(
    cluster: _Cluster, ended: _Ended
) -> None:
    made: list[tuple[int, int]] = []

    def make(worker: int, num_steps: int) -> bool:
        made.append((worker, num_steps))
        cluster.note_finished(worker)
        return True

    span = _run(cluster, ended, make)
    assert sorted(made) == [(0, _STEPS), (2, _STEPS)]
    assert (span.num_done, len(span.left), span.error) == (_STEPS, 0, None)
    assert span.members == [0, 2]
    assert {call["ps"] for call in cluster.calls} == {0, 1}
    assert all(call["members"] == {0, 2} for call in cluster.calls)
    # Nothing is left in the queues, so they stay.
    assert not cluster.left
    assert not cluster.closed
    assert not cluster.renewed
    assert ended.count == 1


def test_a_member_that_fails_leaves_and_the_others_go_on(
    cluster: _Cluster, ended: _Ended
) -> None:
    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        if worker == 2:
            raise ZeroDivisionError
        # The other one has gone for good before this one ends.
        cluster.wait_until(lambda: len(cluster.left) == 2)
        cluster.note_finished(worker)
        return True

    coordinator = _Coordinator()
    span = _run(cluster, ended, make, coordinator=coordinator)
    assert (span.num_done, len(span.left)) == (_STEPS, 1)
    # The coordinator, not the span, has the error of the closure.
    assert span.error is None
    assert isinstance(coordinator.raised[2], ZeroDivisionError)
    assert sorted(cluster.left) == [(2, 0), (2, 1)]
    assert not cluster.closed
    # Its tokens are not for the steps to come.
    assert sorted(cluster.renewed) == [0, 1]


def test_a_member_whose_input_has_ended_leaves(
    cluster: _Cluster, ended: _Ended
) -> None:
    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        if worker == 0:
            return False
        cluster.wait_until(lambda: len(cluster.left) == 2)
        cluster.note_finished(worker)
        return True

    coordinator = _Coordinator()
    span = _run(cluster, ended, make, coordinator=coordinator)
    assert (span.num_done, len(span.left), span.error) == (_STEPS, 1, None)
    assert not coordinator.raised
    assert sorted(cluster.left) == [(0, 0), (0, 1)]
    assert sorted(cluster.renewed) == [0, 1]


def test_a_closure_that_never_runs_leaves(
    cluster: _Cluster, ended: _Ended
) -> None:
    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        cluster.wait_until(lambda: len(cluster.left) == 2)
        cluster.note_finished(worker)
        return True

    span = _run(cluster, ended, make, coordinator=_Coordinator(cancels={0}))
    assert (span.num_done, len(span.left), span.error) == (_STEPS, 1, None)
    assert sorted(cluster.left) == [(0, 0), (0, 1)]


def test_a_span_ends_when_all_members_have_left(
    cluster: _Cluster, ended: _Ended
) -> None:
    span = _run(
        cluster,
        ended,
        lambda worker, num_steps: False,
        coordinator=_Coordinator(cancels={2}),
    )
    assert len(span.left) == 2
    assert sorted(cluster.left) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert sorted(cluster.renewed) == [0, 1]


def test_a_ps_that_fails_ends_all(cluster: _Cluster, ended: _Ended) -> None:
    error = tf.errors.InternalError(None, None, "the update")

    def fail(*arguments: Any) -> Any:
        del arguments
        raise error

    def make(worker: int, num_steps: int) -> bool:
        del worker, num_steps
        # For a token of the ps that has failed.
        cluster.wait_until(lambda: False)
        return True

    coordinator = _Coordinator()
    span = _run(
        cluster,
        ended,
        make,
        coordinator=coordinator,
        appliers=[
            _Applier(lambda *arguments: cluster.apply(0, *arguments)),
            _Applier(fail),
        ],
    )
    assert span.error is error
    assert span.num_done == 0
    assert sorted(cluster.closed) == [0, 1]
    assert sorted(cluster.renewed) == [0, 1]
    # Members end without errors of their own: they are not to blame.
    assert not coordinator.raised


def test_a_relay_that_fails_ends_all(cluster: _Cluster, ended: _Ended) -> None:
    error = tf.errors.UnavailableError(None, None, "a ps is lost")

    def relay() -> None:
        raise error

    def make(worker: int, num_steps: int) -> bool:
        del worker, num_steps
        cluster.wait_until(lambda: False)
        return True

    span = _run(cluster, ended, make, relay=relay)
    assert span.error is error
    assert sorted(cluster.closed) == [0, 1]
    assert sorted(cluster.renewed) == [0, 1]


def test_a_member_that_comes_late_to_closed_queues_ends(
    ended: _Ended,
) -> None:
    error = tf.errors.UnavailableError(None, None, "a ps is lost")
    all_closed = threading.Event()

    def fail(*arguments: Any) -> Any:
        del arguments
        raise error

    class _Noticing(_Cluster):
        def close_queues(self, ps: int) -> None:
            super().close_queues(ps)
            if len(self.closed) == 2:
                all_closed.set()

    cluster = _Noticing()

    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        if worker == 0:
            assert all_closed.wait(_SECONDS)
        cluster.wait_until(lambda: False)
        return True

    coordinator = _Coordinator()
    span = _run(
        cluster,
        ended,
        make,
        coordinator=coordinator,
        appliers=[_Applier(fail), _Applier(fail)],
    )
    assert span.error is error
    assert not coordinator.raised
    assert not span.member_errors
    # Once, although both have failed.
    assert sorted(cluster.closed) == [0, 1]
    assert sorted(cluster.renewed) == [0, 1]


def _make_without_two(cluster: _Cluster) -> Callable[[int, int], bool]:
    """Returns steps of worker 0, which waits for worker 2 to leave all ps."""

    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        if worker == 2:
            return False
        cluster.wait_until(lambda: len(cluster.left) == 2)
        cluster.note_finished(worker)
        return True

    return make


def test_a_ps_that_was_not_told_who_has_left_is_told_again(
    cluster: _Cluster, ended: _Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "_WAKE_UP_SECONDS", 0.01)
    cluster.leave_fails[2, 1] = spans._MOST_TRIES - 1
    span = _run(cluster, ended, _make_without_two(cluster))
    assert (span.num_done, span.error) == (_STEPS, None)
    assert span.left == frozenset({2})
    # The other one heard it at the first try.
    assert cluster.tried == {(2, 0): 1, (2, 1): spans._MOST_TRIES}
    assert cluster.left == [(2, 0), (2, 1)]
    assert not cluster.closed


@pytest.mark.parametrize("error", [_NOT_TOLD, TimeoutError("late")])
def test_a_span_ends_if_a_ps_cannot_be_told_who_has_left(
    cluster: _Cluster, ended: _Ended, monkeypatch: Any, error: Exception
) -> None:
    monkeypatch.setattr(spans, "_WAKE_UP_SECONDS", 0.01)
    cluster.leave_fails[2, 1] = 99
    cluster.leave_error = error
    coordinator = _Coordinator()
    span = _run(
        cluster, ended, _make_without_two(cluster), coordinator=coordinator
    )
    assert cluster.tried == {(2, 0): 1, (2, 1): spans._MOST_TRIES}
    assert sorted(cluster.closed) == [0, 1]
    assert sorted(cluster.renewed) == [0, 1]
    assert isinstance(span.error, tf.errors.UnavailableError)
    assert span.num_done == 0
    # The one that waited for the ps is not to blame.
    assert not coordinator.raised


def test_the_others_go_on_if_a_member_cannot_be_scheduled(
    cluster: _Cluster, ended: _Ended
) -> None:
    error = RuntimeError("the coordinator has ended")

    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        cluster.wait_until(lambda: len(cluster.left) == 4)
        cluster.note_finished(worker)
        return True

    coordinator = _Coordinator(refuses={1: error})
    span = _run(
        cluster, ended, make, coordinator=coordinator, members=(0, 1, 2)
    )
    assert span.error is error
    assert cluster.finished == {0}
    assert not cluster.closed
    # None was scheduled after the one that was refused.
    assert len(coordinator.threads) == 1
    assert span.left == {1, 2}
    assert sorted(cluster.left) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert sorted(cluster.renewed) == [0, 1]
    assert ended.count == 1


class _Stage:
    """A span that ends during some wait for it."""

    def __init__(self, num_waits: int, events: list[str]) -> None:
        self._num_waits = num_waits
        self._events = events

    def hurry(self) -> None:
        """Ends no earlier."""

    def start(self) -> None:
        self._events.append("start")

    def wait(self, timeout_seconds: float) -> bool:
        assert timeout_seconds >= 0
        self._num_waits -= 1
        self._events.append("wait")
        return self._num_waits <= 0


def test_a_span_begins_when_the_one_before_has_ended() -> None:
    events: list[str] = []
    made: Any = [_Stage(3, events), _Stage(1, events), _Stage(1, events)]

    def make() -> Any:
        events.append("make")
        return made[events.count("make") - 1]

    all_spans = Spans()
    assert [all_spans.begin(make) for _ in range(3)] == made
    assert events == [
        *("make", "start"),
        *["wait"] * 3,
        *("make", "start"),
        "wait",
        *("make", "start"),
    ]


def test_a_span_that_cannot_be_made_is_not_waited_for() -> None:
    events: list[str] = []
    first, last = cast(Any, (_Stage(1, events), _Stage(1, events)))

    def fail() -> Any:
        raise ZeroDivisionError

    all_spans = Spans()
    all_spans.begin(lambda: first)
    with pytest.raises(ZeroDivisionError):
        all_spans.begin(fail)
    assert all_spans.begin(lambda: last) is last


def test_a_span_whose_start_is_interrupted_is_waited_for() -> None:
    """It may have begun all the same."""
    events: list[str] = []

    class Interrupted(_Stage):
        def start(self) -> None:
            super().start()
            raise KeyboardInterrupt

    all_spans = Spans()
    with pytest.raises(KeyboardInterrupt):
        all_spans.begin(lambda: cast(Any, Interrupted(2, events)))
    assert all_spans.finish(None)
    assert events == ["start", "wait", "wait"]


def test_a_span_that_never_began_is_not_waited_for(cluster: _Cluster) -> None:
    stand_ins: Any = {"coordinator": _Coordinator(), "step": cluster}
    span = Span(
        **stand_ins,
        appliers=[],
        relay=None,
        referee=None,
        members=(0,),
        num_steps=1,
        make=lambda worker, num_steps: True,
        on_ended=lambda: None,
    )
    assert span.wait(0.0)


def test_the_wait_for_a_span_ends_in_time() -> None:
    all_spans = Spans()
    assert all_spans.finish(0.0)
    all_spans.begin(lambda: cast(Any, _Stage(3, [])))
    assert not all_spans.finish(0.0)
    assert all_spans.finish(_SECONDS)


def test_a_worker_that_fails_although_it_answers_sits_out(
    cluster: _Cluster, ended: _Ended, caplog: pytest.LogCaptureFixture
) -> None:
    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        if worker == 0:
            raise tf.errors.UnavailableError(None, None, "no way to ps 1")
        cluster.wait_until(lambda: len(cluster.left) == 2)
        cluster.note_finished(worker)
        return True

    span = _run(cluster, ended, make)
    all_spans = Spans()
    # It has failed at once.
    all_spans.exclude_failed(span, [], has_recovered=False)
    span.seconds = 30.0
    # It is lost, or has failed because a ps was.
    all_spans.exclude_failed(span, [0], has_recovered=False)
    all_spans.exclude_failed(span, [], has_recovered=True)
    assert all_spans.members([0, 1, 2]) == [0, 1, 2]
    assert not caplog.records
    all_spans.exclude_failed(span, [], has_recovered=False)
    assert all_spans.members([0, 1, 2]) == [1, 2]
    assert "Worker 0 sits out" in caplog.text
    assert "no way to ps 1" in caplog.text


def test_an_error_of_a_step_makes_nobody_sit_out(
    cluster: _Cluster, ended: _Ended
) -> None:
    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        if worker == 0:
            raise ZeroDivisionError
        cluster.wait_until(lambda: len(cluster.left) == 2)
        cluster.note_finished(worker)
        return True

    span = _run(cluster, ended, make)
    all_spans = Spans()
    span.seconds = 30.0
    all_spans.exclude_failed(span, [], has_recovered=False)
    assert all_spans.members([0, 2]) == [0, 2]


def test_a_relay_is_called_once_for_all_steps(
    cluster: _Cluster, ended: _Ended
) -> None:
    calls: list[int] = []

    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        cluster.note_finished(worker)
        return True

    span = _run(cluster, ended, make, relay=lambda: calls.append(1))
    assert calls == [1]
    assert span.error is None


def _finishing(cluster: _Cluster) -> Callable[[int, int], bool]:
    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        cluster.note_finished(worker)
        return True

    return make


def _two_appliers(cluster: _Cluster) -> list[_Applier]:
    return [
        _Applier(lambda *arguments, ps=ps: cluster.apply(ps, *arguments))
        for ps in range(2)
    ]


def test_a_referee_knows_the_steps_and_the_members(
    cluster: _Cluster, ended: _Ended
) -> None:
    calls: list[tuple[int, int, list[bool]]] = []

    def decide(first: Any, last: Any, members: Any) -> None:
        calls.append((int(first), int(last), members.numpy().tolist()))

    appliers = _two_appliers(cluster)
    span = _run(
        cluster, ended, _finishing(cluster), appliers=appliers, referee=decide
    )
    assert span.error is None
    assert calls == [(0, _STEPS, [True, False, True])]
    # Parcels that came too late are not for the next steps.
    assert [each.num_emptied for each in appliers] == [1, 1]
    assert not cluster.renewed


def test_without_a_referee_nothing_comes_too_late(
    cluster: _Cluster, ended: _Ended
) -> None:
    appliers = _two_appliers(cluster)
    _run(cluster, ended, _finishing(cluster), appliers=appliers)
    assert [each.num_emptied for each in appliers] == [0, 0]


def test_queues_that_cannot_be_emptied_are_replaced(
    cluster: _Cluster, ended: _Ended
) -> None:
    appliers = _two_appliers(cluster)
    appliers[1].empty_error = tf.errors.UnavailableError(None, None, "lost")
    span = _run(
        cluster,
        ended,
        _finishing(cluster),
        appliers=appliers,
        referee=lambda *arguments: None,
    )
    assert span.error is None
    assert sorted(cluster.renewed) == [0, 1]


def test_a_referee_that_fails_ends_all(
    cluster: _Cluster, ended: _Ended
) -> None:
    error = tf.errors.UnavailableError(None, None, "a ps is lost")

    def decide(*arguments: Any) -> None:
        del arguments
        raise error

    def make(worker: int, num_steps: int) -> bool:
        del worker, num_steps
        cluster.wait_until(lambda: False)
        return True

    span = _run(cluster, ended, make, referee=decide)
    assert span.error is error
    assert sorted(cluster.closed) == [0, 1]
    assert sorted(cluster.renewed) == [0, 1]


def test_the_examples_that_counted_are_known_with_a_referee(
    cluster: _Cluster, ended: _Ended
) -> None:
    def apply(ps: int, examples: int, *arguments: Any) -> tuple[Any, ...]:
        return *cluster.apply(ps, *arguments), tf.constant(examples)

    span = _run(
        cluster,
        ended,
        _finishing(cluster),
        appliers=[
            _Applier(lambda *arguments: apply(0, 30, *arguments)),
            _Applier(lambda *arguments: apply(1, 31, *arguments)),
        ],
        referee=lambda *arguments: None,
    )
    # A worker that was lost has sent its parcel to one ps only.
    assert span.num_examples == 31
    assert span.num_parts(0) == 1


def test_an_error_of_the_cluster_on_a_member_is_the_coordinators(
    cluster: _Cluster, ended: _Ended
) -> None:
    """It decides whether the worker is lost; the span only goes on."""

    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        if worker == 0:
            raise tf.errors.CancelledError(None, None, "connection lost")
        cluster.wait_until(lambda: len(cluster.left) == 2)
        cluster.note_finished(worker)
        return True

    coordinator = _Coordinator()
    span = _run(cluster, ended, make, coordinator=coordinator)
    assert isinstance(coordinator.raised[0], tf.errors.CancelledError)
    assert (len(span.left), span.num_done, span.error) == (1, _STEPS, None)


def test_each_ps_gets_the_scalars_of_others(
    cluster: _Cluster, ended: _Ended
) -> None:
    scalars = [testing.remote_variable(tf.constant(n)) for n in (0.5, 0.25)]

    def make(worker: int, num_steps: int) -> bool:
        del num_steps
        cluster.note_finished(worker)
        return True

    _run(
        cluster,
        ended,
        make,
        appliers=[
            _Applier(lambda *arguments: cluster.apply(0, *arguments), scalars),
            _Applier(lambda *arguments: cluster.apply(1, *arguments)),
        ],
    )
    values = {call["ps"]: call["values"] for call in cluster.calls}
    assert [float(value) for value in values[0]] == [0.5, 0.25]
    assert values[1] == []

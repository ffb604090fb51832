"""Tests of the queue's waits; its ledger's tests cover its decisions."""

import contextlib
import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.testing import FakeListener

_TIMEOUT_SECONDS = 30.0


class _Task:
    """A function that runs on its own thread, and its result."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._action = action
        self._thread = threading.Thread(target=self._act)
        self._thread.start()

    def _act(self) -> None:
        try:
            self.result = self._action()
        except BaseException as error:
            self.error = error

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> "_Task":
        self._thread.join(_TIMEOUT_SECONDS)
        assert not self._thread.is_alive()
        return self


@contextlib.contextmanager
def _queue(capacity: int = 10) -> Iterator[ClosureQueue]:
    queue = ClosureQueue(SharedLedger(capacity))
    try:
        yield queue
    finally:
        queue.stop()


def _closure(
    listener: FakeListener | None = None, bound_to: int | None = None
) -> Closure:
    return Closure(lambda: None, listener, bound_to)


class _Step:
    """A callable that describes itself."""

    def __call__(self) -> None:
        """Does nothing."""

    def __str__(self) -> str:
        return "step(float32[8])"


def test_get_waits_for_put() -> None:
    with _queue() as queue:
        getting = _Task(lambda: queue.lanes.get(0))
        closure = _closure()
        queue.put(closure)
        assert getting.end().result is closure


def test_one_that_takes_long_holds_nobody_up() -> None:
    with _queue() as queue:
        closures = [_closure() for _ in range(4)]
        for closure in closures:
            queue.put(closure)
        tasks = [
            _Task(functools.partial(queue.lanes.get, lane)) for lane in range(4)
        ]
        # None of them is done.
        taken = {id(task.end().result) for task in tasks}
        assert taken == set(map(id, closures))


def test_put_waits_for_room() -> None:
    with _queue(capacity=1) as queue:
        queue.put(_closure())
        putting = _Task(lambda: queue.put(_closure()))
        assert putting.is_waiting
        assert queue.lanes.get(0) is not None
        assert putting.end().error is None
        assert queue._ledger.num_queued == 1


def test_put_back_does_not_wait_for_room() -> None:
    with _queue(capacity=1) as queue:
        queue.put(_closure())
        closure = queue.lanes.get(0)
        assert closure is not None
        queue.put(_closure())
        queue.lanes.put_back(closure, 1)
        assert queue._ledger.num_queued == 2
        assert queue.lanes.get(0) is closure


def test_join_waits_for_what_runs() -> None:
    with _queue() as queue:
        listener = FakeListener()
        queue.put(_closure(listener))
        closure = queue.lanes.get(0)
        assert closure is not None
        joining = _Task(queue.join)
        assert not queue.is_done()
        assert joining.is_waiting
        queue.lanes.done(closure, 1, 7)
        assert joining.end().error is None
        assert listener.told == [(ClosureState.DONE, 7, 0)]
        assert queue.is_done()


def test_error_is_raised_once_and_only_when_nothing_runs() -> None:
    with _queue() as queue:
        listener = FakeListener()
        for _ in range(3):
            queue.put(_closure(listener))
        failing, running = queue.lanes.get(0), queue.lanes.get(1)
        assert failing is not None
        assert running is not None
        queue.lanes.failed(failing, 1, RuntimeError("step"))
        joining = _Task(queue.join)
        assert joining.is_waiting
        queue.lanes.done(running, 1, 7)
        assert str(joining.end().error) == "step"
        assert [state for state, *_ in listener.told] == [
            ClosureState.FAILED,
            ClosureState.CANCELLED,
            ClosureState.CANCELLED,
        ]
        queue.join()
        assert queue.is_done()


def test_error_is_raised_by_the_next_put() -> None:
    with _queue() as queue:
        queue.put(_closure())
        closure = queue.lanes.get(0)
        assert closure is not None
        queue.lanes.failed(closure, 1, RuntimeError("step"))
        with pytest.raises(RuntimeError, match="step"):
            queue.put(_closure())
        assert queue._ledger.num_queued == 0
        queue.put(_closure())
        assert queue._ledger.num_queued == 1


def test_error_wakes_those_who_wait_for_room() -> None:
    with _queue(capacity=1) as queue:
        queue.put(_closure())
        closure = queue.lanes.get(0)
        assert closure is not None
        queue.put(_closure())
        putting = _Task(lambda: queue.put(_closure()))
        queue.lanes.failed(closure, 1, RuntimeError("step"))
        assert str(putting.end().error) == "step"


def test_error_that_belongs_to_no_closure() -> None:
    with _queue() as queue:
        queue.put(_closure())
        queue.end_round(errors.WorkerLostError("nobody left"))
        with pytest.raises(errors.WorkerLostError, match="nobody left"):
            queue.join()


def test_many_callers_one_of_them_gets_the_error() -> None:
    with _queue() as queue:
        queue.put(_closure())
        closure = queue.lanes.get(0)
        assert closure is not None
        joining = [_Task(queue.join) for _ in range(5)]
        queue.lanes.failed(closure, 1, RuntimeError("step"))
        raised = [task.end().error for task in joining]
        assert len([error for error in raised if error is not None]) == 1


def test_paused_worker_gets_nothing_until_resumed() -> None:
    with _queue() as queue:
        queue.lanes.pause(1)
        paused = _Task(lambda: queue.lanes.get(1))
        queue.put(_closure())
        assert queue.lanes.get(0) is not None
        queue.put(_closure())
        assert paused.is_waiting
        queue.lanes.resume(1)
        assert paused.end().result is not None


def test_worker_paused_while_it_waits_passes_work_on() -> None:
    with _queue() as queue:
        paused = _Task(lambda: queue.lanes.get(1))
        well = _Task(lambda: queue.lanes.get(0))
        queue.lanes.pause(1)
        queue.put(_closure())
        assert well.end().result is not None
        assert paused.is_waiting
        queue.stop()
        assert paused.end().result is None


def test_a_lane_is_started_when_there_is_work_for_it() -> None:
    with _queue() as queue:
        started: list[int] = []
        for worker_index in (0, 1):
            queue.lanes.add(
                worker_index,
                lambda index=worker_index: started.append(index),  # type: ignore[misc]
            )
        assert started == []
        queue.put(_closure())
        assert started == [0]
        queue.put(_closure())
        assert started == [0], "the next is woken by this one, when it comes"
        assert queue.lanes.get(0) is not None
        assert started == [0, 1]
        assert queue.lanes.get(1) is not None


def test_all_lanes_come_when_there_is_work_for_all() -> None:
    """Lanes wake each other one at a time; none may be missed."""
    num_workers, num_each, num_rounds = 4, 2, 100
    num_lanes = num_workers * num_each
    with _queue(capacity=num_lanes) as queue:
        threads = []

        def run_lane(worker_index: int) -> None:
            while (closure := queue.lanes.get(worker_index)) is not None:
                closure.call()
                queue.lanes.done(closure, closure.num_attempts, None)

        for worker_index in (*range(num_workers),) * num_each:
            thread = threading.Thread(target=run_lane, args=(worker_index,))
            threads.append(thread)
            queue.lanes.add(worker_index, thread.start)
        for number in range(num_rounds):
            # Each ends only when all run.
            together = threading.Barrier(num_lanes)
            num_bound = (0, 0, num_lanes // 2, num_lanes)[number % 4]
            for index in range(num_lanes):
                wait = functools.partial(together.wait, _TIMEOUT_SECONDS)
                # Bound ones first, or others might take their lanes.
                bound_to = index % num_workers if index < num_bound else None
                queue.put(Closure(wait, bound_to=bound_to))
                if number % 4 == 1:
                    queue.lanes.pause(index % num_workers)
                    queue.lanes.resume(index % num_workers)
            queue.join()
            assert not together.broken
        queue.stop()
        for thread in threads:
            thread.join(_TIMEOUT_SECONDS)
            assert not thread.is_alive()


def test_as_many_lanes_of_each_worker_take_part_as_are_to() -> None:
    """Whatever the limit was before, and while other lanes still run."""
    num_workers, num_each = 2, 4
    with _queue(capacity=100) as queue:
        threads = []
        lock = threading.Lock()
        running = [0] * num_workers

        def run_lane(worker_index: int, number: int) -> None:
            while (
                closure := queue.lanes.get(worker_index, number)
            ) is not None:
                with lock:
                    running[worker_index] += 1
                closure.call()
                with lock:
                    running[worker_index] -= 1
                queue.lanes.done(closure, closure.num_attempts, None)

        queue.lanes.limit(2)
        for worker_index in range(num_workers):
            for number in range(num_each):
                thread = threading.Thread(
                    target=run_lane, args=(worker_index, number)
                )
                threads.append(thread)
                queue.lanes.add(worker_index, thread.start, number)
        for most in (2, 4, 1, 3, 1, 4, 2, 1):
            # Puts too many closures while the limit differs.
            queue.lanes.limit(most)
            # Each ends only when as many run as the limit allows.
            together = threading.Barrier(num_workers * most)
            seen: list[list[int]] = []

            def run(together: Any = together, seen: Any = seen) -> None:
                together.wait(_TIMEOUT_SECONDS)
                with lock:
                    seen.append(list(running))

            for _ in range(2 * num_workers * most):
                queue.put(Closure(run))
            queue.join()
            assert not together.broken
            assert max(max(each) for each in seen) == most
        assert sum(thread.ident is not None for thread in threads) == 8
        queue.stop()
        for thread in threads:
            thread.join(_TIMEOUT_SECONDS)
            assert not thread.is_alive()


def test_lanes_that_are_too_many_go_on_with_what_they_run() -> None:
    with _queue() as queue:
        queue.put(_closure())
        running = queue.lanes.get(0, 1)
        assert running is not None
        queue.lanes.limit(1)
        queue.put(_closure())
        spare = _Task(lambda: queue.lanes.get(0, 1))
        queue.lanes.done(running, running.num_attempts, None)
        assert queue.lanes.get(0, 0) is not None
        assert spare.is_waiting
        queue.put(_closure())
        assert spare.is_waiting
        queue.lanes.limit(2)
        assert spare.end().result is not None


def test_a_lane_that_is_spare_ends_with_the_queue() -> None:
    with _queue() as queue:
        queue.lanes.limit(1)
        spare = _Task(lambda: queue.lanes.get(0, 1))
        queue.stop()
        assert spare.end().result is None


def test_a_lane_that_comes_late_finds_its_work() -> None:
    with _queue() as queue:
        queue.put(_closure())
        taken: list[Closure | None] = []
        queue.lanes.add(0, lambda: taken.append(queue.lanes.get(0)))
        assert [each is not None for each in taken] == [True]


def test_a_resumed_worker_is_given_what_waits() -> None:
    with _queue() as queue:
        started: list[int] = []
        queue.lanes.pause(0)
        queue.lanes.add(0, lambda: started.append(0))
        queue.put(_closure())
        assert started == []
        queue.lanes.resume(0)
        assert started == [0]


def test_a_thread_that_cannot_start_leaves_its_work_to_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with _queue() as queue:

        def start() -> None:
            raise RuntimeError("can't start new thread")

        others: list[int] = []
        queue.lanes.add(0, start)
        queue.lanes.add(1, lambda: others.append(1))
        closure = _closure()
        queue.put(closure)
        assert "ulimit" in caplog.text
        assert others == [1]
        assert not queue.has_error
        assert queue.lanes.get(1) is closure


def test_where_no_thread_can_start_it_is_said() -> None:
    with _queue() as queue:
        can_start = False
        started: list[int] = []

        def start() -> None:
            if not can_start:
                raise RuntimeError("can't start new thread")
            started.append(0)

        queue.lanes.add(0, start)
        queue.put(_closure())
        with pytest.raises(RuntimeError, match="start new thread"):
            queue.join()
        # It is tried again.
        can_start = True
        queue.put(_closure())
        assert started == [0]


def test_an_interrupted_start_is_made_up_for() -> None:
    with _queue() as queue:
        interrupts: list[type[BaseException]] = [KeyboardInterrupt]
        started: list[int] = []

        def start() -> None:
            if interrupts:
                raise interrupts.pop()
            started.append(0)

        queue.lanes.add(0, start)
        with pytest.raises(KeyboardInterrupt):
            queue.put(_closure())
        assert not queue.has_error
        queue.put(_closure())
        assert started == [0]


def test_cancel_queued() -> None:
    with _queue() as queue:
        listener = FakeListener()
        for _ in range(3):
            queue.put(_closure(listener))
        running = queue.lanes.get(0)
        assert running is not None
        assert queue.cancel_queued() == 2
        queue.lanes.done(running, 1, 7)
        queue.join()
        assert [state for state, *_ in listener.told] == [
            ClosureState.CANCELLED,
            ClosureState.CANCELLED,
            ClosureState.DONE,
        ]


def test_what_is_put_beside_the_program_leaves_it_alone() -> None:
    with _queue(capacity=2) as queue:
        beside = _closure(bound_to=0)
        assert queue.try_put(beside)
        assert queue.lanes.get(0) is beside
        queue.lanes.done(beside, 1, None)
        for _ in range(2):
            queue.put(_closure())
        # A program may keep the queue full all the time.
        beside = _closure(bound_to=0)
        assert queue.try_put(beside)
        assert queue.lanes.get(0) is beside
        queue.lanes.done(beside, 1, None)
        queue.cancel_queued()
        queue.lanes.pause(0)
        assert not queue.try_put(_closure(bound_to=0)), "it is paused"
        queue.lanes.resume(0)
        queue.end_round(ValueError("the error of the program"))
        assert not queue.try_put(_closure(bound_to=0)), "an error waits"
        with pytest.raises(ValueError, match="of the program"):
            queue.join()
        assert queue.try_put(_closure())
        queue.stop()
        assert not queue.try_put(_closure()), "it has ended"


def test_stop_ends_every_wait() -> None:
    with _queue(capacity=1) as queue:
        queue.put(_closure())
        running = queue.lanes.get(0)
        assert running is not None
        queue.put(_closure())
        putting = _Task(lambda: queue.put(_closure()))
        joining = _Task(queue.join)
        queue.stop()
        queue.lanes.put_back(running, 1)
        assert isinstance(putting.end().error, errors.ClosureCancelledError)
        assert joining.end().error is None
        assert queue.lanes.get(0) is None
        assert running.state is ClosureState.CANCELLED
        assert queue.wait_until_quiet(0.0)


def test_wait_until_quiet_gives_up() -> None:
    with _queue() as queue:
        queue.put(_closure())
        closure = queue.lanes.get(0)
        assert closure is not None
        assert not queue.wait_until_quiet(0.01)
        queue.lanes.done(closure, 1, None)


def test_what_an_abandoned_attempt_brings_is_ignored() -> None:
    with _queue() as queue:
        listener = FakeListener()
        queue.put(_closure(listener))
        closure = queue.lanes.get(0)
        assert closure is not None
        assert queue.lanes.put_back(closure, 1)
        assert not queue.lanes.put_back(closure, 1)
        queue.lanes.done(closure, 1, "late")
        assert queue.lanes.get(1) is closure
        queue.lanes.failed(closure, 1, RuntimeError("late"))
        queue.lanes.done(closure, 2, "in time")
        queue.join()
        assert listener.told == [(ClosureState.DONE, "in time", 1)]


def test_pause_before_a_retry_ends_with_the_round() -> None:
    with _queue() as queue:
        for _ in range(2):
            queue.put(_closure())
        retried, failing = queue.lanes.get(0), queue.lanes.get(0)
        assert retried is not None
        assert failing is not None
        waiting = _Task(lambda: queue.lanes.wait_before_retry(retried, 3600.0))
        queue.lanes.failed(failing, 1, RuntimeError("step"))
        waiting.end()
        queue.lanes.put_back(retried, 1)
        with pytest.raises(RuntimeError, match="step"):
            queue.join()


def test_who_rests_ends_with_the_queue() -> None:
    with _queue() as queue:
        resting = _Task(lambda: queue.lanes.rest(3600.0))
        queue.stop()
        resting.end()


def test_a_paused_worker_cancels_what_waits_for_it_alone() -> None:
    with _queue(capacity=3) as queue:
        bound, others = FakeListener(), FakeListener()
        queue.put(_closure(bound, 1))
        queue.put(_closure(others))
        queue.put(_closure(others, 0))
        putting = _Task(lambda: queue.put(_closure(others)))
        cancelled = queue.lanes.pause(1)
        assert bound.told == [], "the caller may hold locks"
        assert not queue.wait_until_quiet(0.0)
        queue.lanes.tell(cancelled)
        assert bound.told == [(ClosureState.CANCELLED, None, None)]
        assert putting.end().error is None
        assert queue.wait_until_quiet(0.0)
        assert others.told == []
        assert queue.cancel_queued() == 3
        queue.join()


def test_what_is_put_for_a_paused_worker_alone_is_cancelled_at_once() -> None:
    with _queue(capacity=1) as queue:
        queue.lanes.tell(queue.lanes.pause(1))
        queue.put(_closure())
        listener = FakeListener()
        # Although there is no room.
        queue.put(_closure(listener, 1))
        assert listener.told == [(ClosureState.CANCELLED, None, None)]
        assert queue.lanes.get(0) is not None
        queue.lanes.resume(1)
        closure = _closure(listener, 1)
        queue.put(closure)
        assert queue.lanes.get(1) is closure


def test_who_waits_for_room_learns_that_the_worker_is_paused() -> None:
    with _queue(capacity=1) as queue:
        queue.put(_closure())
        listener = FakeListener()
        putting = _Task(lambda: queue.put(_closure(listener, 1)))
        assert putting.is_waiting
        queue.lanes.tell(queue.lanes.pause(1))
        assert putting.end().error is None
        assert listener.told == [(ClosureState.CANCELLED, None, None)]


def test_join_returns_after_a_bound_closure_was_cancelled() -> None:
    with _queue() as queue:
        listener = FakeListener()
        for _ in range(2):
            queue.put(_closure(listener, 1))
        running = queue.lanes.get(1)
        assert running is not None
        joining = _Task(queue.join)
        queue.lanes.tell(queue.lanes.pause(1))
        assert joining.is_waiting
        assert not queue.lanes.put_back(running, 1, worker_is_lost=True)
        assert joining.end().error is None
        assert listener.told == [
            (ClosureState.CANCELLED, None, None),
            (ClosureState.CANCELLED, None, 1),
        ]


def test_closures_bound_to_a_busy_worker_do_not_hold_up_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Callers learn of room although most of the queue waits for long."""
    with _queue(capacity=4) as queue:
        for _ in range(3):
            queue.put(_closure(bound_to=1))
        queue.put(_closure())
        putting = _Task(lambda: queue.put(_closure()))
        woken = threading.Event()
        room_made = queue._shared.room_made
        original = room_made.notify

        def notify(n: int = 1) -> None:
            woken.set()
            original(n)

        monkeypatch.setattr(room_made, "notify", notify)
        assert queue.lanes.get(0) is not None
        assert woken.is_set()
        assert putting.end().error is None


def test_many_lanes_and_callers() -> None:
    with _queue(capacity=4) as queue:
        listener = FakeListener()
        num_each = 200

        def run_lane(worker_index: int) -> None:
            while (closure := queue.lanes.get(worker_index)) is not None:
                if closure.num_attempts == 1 and len(listener.told) % 7 == 0:
                    queue.lanes.put_back(closure, closure.num_attempts)
                else:
                    queue.lanes.done(
                        closure, closure.num_attempts, worker_index
                    )

        def schedule(bound_to: int | None) -> None:
            for _ in range(num_each):
                queue.put(_closure(listener, bound_to))

        lanes = [
            _Task(lambda index=index: run_lane(index))  # type: ignore[misc]
            for index in range(4)
        ]
        callers = [
            _Task(functools.partial(schedule, bound_to))
            for bound_to in (None, None, 2)
        ]
        for number in range(50):
            queue.lanes.tell(queue.lanes.pause(number % 4))
            queue.lanes.resume(number % 4)
        for caller in callers:
            assert caller.end().error is None
        queue.join()
        assert len(listener.told) == len(callers) * num_each
        queue.stop()
        for lane in lanes:
            assert lane.end().error is None


def test_the_queue_notes_who_runs_a_closure_and_why_again() -> None:
    queue = ClosureQueue(SharedLedger(capacity=2))
    closure = Closure(lambda: None)
    queue.put(closure)
    assert queue.lanes.get(3) is closure
    assert closure.worker_index == 3
    assert queue.lanes.put_back(closure, 1)
    assert queue.lanes.get(4) is closure
    assert closure.worker_index == 4
    assert closure.num_transient_retries == 0
    # Reports on an abandoned attempt change nothing.
    assert not queue.lanes.put_back(closure, 1, is_transient=True)
    assert closure.num_transient_retries == 0
    assert queue.lanes.put_back(closure, 2, is_transient=True)
    assert closure.num_transient_retries == 1


def test_a_closure_that_takes_its_workers_with_it_fails() -> None:
    queue = ClosureQueue(SharedLedger(10, max_workers_lost=3))
    closure = Closure(_Step())
    queue.put(closure)
    for worker in (0, 2):
        assert queue.lanes.get(worker) is closure
        assert queue.lanes.put_back(
            closure, closure.num_attempts, worker_is_lost=True
        )
    # Only losses of workers count.
    assert queue.lanes.get(0) is closure
    assert queue.lanes.put_back(closure, closure.num_attempts)
    assert queue.lanes.get(1) is closure
    assert not queue.lanes.put_back(
        closure, closure.num_attempts, worker_is_lost=True
    )
    with pytest.raises(
        errors.ClosureLosesWorkersError,
        match=r"step\(float32\[8\]\), on workers \[0, 2, 1\]",
    ):
        queue.join()


class _Cancellation:
    """Records its start."""

    def __init__(self) -> None:
        self.started_at: float | None = None

    def start(self) -> None:
        self.started_at = 1.0

    def ignored_by(self) -> frozenset[Any]:
        return frozenset()


def test_the_end_of_a_round_cancels_the_calls_of_that_round() -> None:
    queue = ClosureQueue(SharedLedger(10, new_cancellation=_Cancellation))
    for _ in range(2):
        queue.put(_closure())
        queue.put(_closure())
        first, second = queue.lanes.get(0), queue.lanes.get(0)
        assert first is not None
        assert second is not None
        assert first.cancellation is second.cancellation is not None
        queue.lanes.failed(first, 1, ValueError("first"))
        assert second.cancellation.started_at is not None
        # It failed because it was cancelled, or for any other reason.
        queue.lanes.put_back(second, 1)
        assert second.state is ClosureState.CANCELLED
        with pytest.raises(ValueError, match="first"):
            queue.join()
    queue.stop()


def test_a_result_cancels_nothing() -> None:
    queue = ClosureQueue(SharedLedger(10, new_cancellation=_Cancellation))
    queue.put(_closure())
    queue.put(_closure())
    first, second = queue.lanes.get(0), queue.lanes.get(0)
    assert first is not None
    assert second is not None
    assert second.cancellation is not None
    queue.lanes.done(first, 1, 7)
    queue.cancel_queued()
    assert second.cancellation.started_at is None
    queue.cancel_running()
    assert second.cancellation.started_at is not None
    queue.stop()

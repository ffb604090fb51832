"""Tests of a lane that the coordinator's tests do not cover."""

import gc
import logging
import math
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls
from tfps_plugin.coordinator.closures.closure import Closure
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.coordinator.closures.closure_queue import ClosureQueue
from tfps_plugin.coordinator.closures.shared_ledger import SharedLedger
from tfps_plugin.coordinator.error_notes import ErrorNotes
from tfps_plugin.coordinator.lanes import first_calls
from tfps_plugin.coordinator.lanes.failed_runs import FailedRuns
from tfps_plugin.coordinator.lanes.lane import Lane
from tfps_plugin.coordinator.lanes.worker import Worker
from tfps_plugin.coordinator.members import failures
from tfps_plugin.coordinator.members.failures import Failure
from tfps_plugin.coordinator.testing import FakeListener
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.events import Events

_TIMEOUT_SECONDS = 30.0


class _AlwaysThere:
    """A membership without changes."""

    excuses_failures = False
    num_changes = 7
    present_generation = 0

    def generation(self, worker_index: int) -> int:
        return self.present_generation

    def is_present(self, worker_index: int, generation: int) -> bool:
        return True


class _Nobody:
    """Finds no task lost; records how thoroughly it was asked to look."""

    def __init__(self) -> None:
        self.thoroughly: list[bool] = []

    def examine(
        self,
        failure: Failure,
        worker_index: int,
        generation: int,
        *,
        thoroughly: bool,
    ) -> BaseException | None:
        self.thoroughly.append(thoroughly)
        return None


def _unavailable() -> Exception:
    error: Exception = tf.errors.UnavailableError(
        None, None, "cannot be reached"
    )
    return error


class _Bench:
    """A queue and a worker of one lane."""

    def __init__(self) -> None:
        self.queue = ClosureQueue(SharedLedger(capacity=10))
        self.counters = Counters()
        self.devices = ["/device:CPU:0"]
        self.membership = _AlwaysThere()
        membership: Any = self.membership
        # The workers on which a closure did not complete and runs again.
        self.retries: list[int] = []
        self.examiner = _Nobody()
        examiner: Any = self.examiner
        lane = Lane(
            0,
            0,
            lambda: self.devices[-1],
            self.queue.lanes,
            membership,
            FailedRuns(
                0,
                self.queue.lanes,
                membership,
                examiner,
                self.counters,
                Events(),
                ErrorNotes(lambda index: ""),
                on_retry=self.retries.append,
            ),
            self.counters,
            WorkerCalls(2 * _TIMEOUT_SECONDS),
        )
        self.worker = Worker(0, [lane])
        self.worker.start()


@pytest.fixture
def bench() -> Iterator[_Bench]:
    made = _Bench()
    yield made
    made.queue.stop()
    assert made.worker.join(_TIMEOUT_SECONDS)


def test_a_closure_knows_when_it_began(bench: _Bench) -> None:
    found = []
    bench.queue.put(Closure(lambda: found.append(dispatch_context.required())))
    bench.queue.join()
    assert [each.num_changes for each in found] == [_AlwaysThere.num_changes]


def test_busy_only_while_it_runs(bench: _Bench) -> None:
    assert bench.worker.busy_since() is None
    begun, go_on = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        assert go_on.wait(_TIMEOUT_SECONDS)

    bench.queue.put(Closure(run))
    assert begun.wait(_TIMEOUT_SECONDS)
    assert bench.worker.busy_since() is not None
    go_on.set()
    bench.queue.join()
    bench.queue.put(Closure(lambda: None))
    bench.queue.join()


def test_abandoned_run_is_repeated_and_its_late_end_ignored(
    bench: _Bench,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    listener = FakeListener()

    def run() -> str:
        threads.append(threading.current_thread())
        if len(threads) == 1:
            begun.set()
            assert go_on.wait(_TIMEOUT_SECONDS)
            return "late"
        return "in time"

    closure = Closure(run, listener)
    bench.queue.put(closure)
    assert begun.wait(_TIMEOUT_SECONDS)
    bench.worker.abandon()
    bench.queue.join()
    assert listener.told == [(ClosureState.DONE, "in time", 0)]
    assert bench.counters.value("closures_abandoned") == 1

    go_on.set()
    threads[0].join(_TIMEOUT_SECONDS)
    assert not threads[0].is_alive(), "an abandoned thread ends"
    assert threads[1] is not threads[0]
    assert len(listener.told) == 1
    assert closure.num_attempts == 2
    assert bench.counters.value("closures_done") == 1
    assert bench.retries == [0]


def test_an_abandoned_run_that_is_bound_is_not_repeated(
    bench: _Bench,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    listener = FakeListener()

    def run() -> None:
        threads.append(threading.current_thread())
        begun.set()
        assert go_on.wait(_TIMEOUT_SECONDS)

    bench.queue.put(Closure(run, listener, bound_to=0))
    assert begun.wait(_TIMEOUT_SECONDS)
    bench.worker.abandon()
    bench.queue.join()
    go_on.set()
    threads[0].join(_TIMEOUT_SECONDS)
    # The lane goes on with a new thread.
    bench.queue.put(Closure(lambda: 7, listener, bound_to=0))
    bench.queue.join()
    assert len(threads) == 1
    assert not bench.retries
    assert listener.told == [
        (ClosureState.CANCELLED, None, 0),
        (ClosureState.DONE, 7, 0),
    ]


@pytest.mark.parametrize("ps_was_away", [False, True])
def test_a_bound_run_that_fails_is_not_repeated(
    bench: _Bench,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ps_was_away: bool,
) -> None:
    caplog.set_level(logging.INFO, "tfps_plugin")
    monkeypatch.setattr(_AlwaysThere, "excuses_failures", ps_was_away)

    def no_pause(num_transient_retries: int) -> float:
        raise AssertionError("Nothing is to be run again.")

    monkeypatch.setattr(failures, "pause_seconds", no_pause)
    listener = FakeListener()

    def fail() -> None:
        raise _unavailable()

    for _ in range(2):
        bench.queue.put(Closure(fail, listener, bound_to=0))
        bench.queue.join()
    assert listener.told == [(ClosureState.CANCELLED, None, 0)] * 2
    assert bench.counters.value("closures_retried") == 0
    assert "only worker 0 may run is cancelled" in caplog.text
    assert "UnavailableError: cannot be reached" in caplog.text
    # Its tasks are examined like those of a closure that failed twice.
    assert bench.examiner.thoroughly == [False, not ps_was_away]


def test_the_error_of_a_bound_run_is_raised(bench: _Bench) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    bench.queue.put(Closure(fail, bound_to=0))
    with pytest.raises(ZeroDivisionError):
        bench.queue.join()


def test_a_call_hangs_on_what_it_needs(bench: _Bench) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def call() -> None:
        begun.release()
        assert go_on.wait(_TIMEOUT_SECONDS)

    assert not bench.worker.hangs_on([0, 1], math.inf)
    bench.queue.put(Closure(first_calls.exclusive(call, {1})))
    assert begun.acquire(timeout=_TIMEOUT_SECONDS)
    assert bench.worker.hangs_on([0, 1], math.inf)
    assert not bench.worker.hangs_on([0], math.inf)
    assert not bench.worker.hangs_on([1], 0.0)
    # An abandoned call does not block others.
    bench.worker.abandon()
    assert begun.acquire(timeout=_TIMEOUT_SECONDS)
    go_on.set()
    bench.queue.join()
    assert not bench.worker.hangs_on([1], math.inf)


def test_an_abandoned_call_is_known_until_it_ends(bench: _Bench) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    threads: list[threading.Thread] = []

    def call() -> None:
        threads.append(threading.current_thread())
        begun.release()
        assert go_on.wait(_TIMEOUT_SECONDS)

    bench.queue.put(Closure(first_calls.exclusive(call, {1}), bound_to=0))
    assert begun.acquire(timeout=_TIMEOUT_SECONDS)
    assert not bench.worker.abandoned_call_needs([0, 1], math.inf)
    bench.worker.abandon()
    bench.queue.join()
    assert not bench.worker.hangs_on([0, 1], math.inf)
    assert bench.worker.abandoned_call_needs([0, 1], math.inf)
    assert not bench.worker.abandoned_call_needs([0], math.inf)
    assert not bench.worker.abandoned_call_needs([1], 0.0)
    # A worker that was readmitted knows nothing of it.
    bench.membership.present_generation = 1
    assert not bench.worker.abandoned_call_needs([1], math.inf)
    bench.membership.present_generation = 0
    go_on.set()
    threads[0].join(_TIMEOUT_SECONDS)
    assert not bench.worker.abandoned_call_needs([1], math.inf)


def test_nothing_keeps_what_an_abandoned_call_was_made_with(
    bench: _Bench,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    class Given:
        def __call__(self) -> None:
            threads.append(threading.current_thread())
            begun.set()
            assert go_on.wait(_TIMEOUT_SECONDS)

    given = Given()
    reference = weakref.ref(given)
    bench.queue.put(Closure(first_calls.exclusive(given, {1}), bound_to=0))
    del given
    assert begun.wait(_TIMEOUT_SECONDS)
    bench.worker.abandon()
    bench.queue.join()
    go_on.set()
    threads[0].join(_TIMEOUT_SECONDS)
    gc.collect()
    assert reference() is None


def test_an_abandoned_call_is_cancelled_after_its_closure_has_ended(
    bench: _Bench,
) -> None:
    begun, cancelled = threading.Event(), threading.Event()
    listener = FakeListener()
    told: list[int] = []
    threads: list[threading.Thread] = []

    class Manager:
        def start_cancel(self) -> None:
            told.append(len(listener.told))
            cancelled.set()

    def call() -> None:
        threads.append(threading.current_thread())
        in_flight = dispatch_context.required().call
        assert in_flight is not None
        in_flight.cancelled_by(Manager())
        begun.set()
        assert cancelled.wait(_TIMEOUT_SECONDS)
        # Whatever the thread begins after that ends at once.
        in_flight.cancelled_by(Manager())

    bench.queue.put(Closure(call, listener, bound_to=0))
    assert begun.wait(_TIMEOUT_SECONDS)
    assert not told
    bench.worker.abandon()
    assert cancelled.wait(_TIMEOUT_SECONDS)
    threads[0].join(_TIMEOUT_SECONDS)
    assert told == [1, 1]
    assert listener.told == [(ClosureState.CANCELLED, None, 0)]


def test_late_failure_of_an_abandoned_run_does_not_count(
    bench: _Bench,
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def run() -> None:
        threads.append(threading.current_thread())
        if len(threads) == 1:
            begun.set()
            assert go_on.wait(_TIMEOUT_SECONDS)
            raise ValueError("late")

    bench.queue.put(Closure(run))
    assert begun.wait(_TIMEOUT_SECONDS)
    bench.worker.abandon()
    bench.queue.join()
    go_on.set()
    threads[0].join(_TIMEOUT_SECONDS)
    assert bench.counters.value("closures_failed") == 0


def test_it_can_be_joined_while_it_is_abandoned(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    joined: list[bool] = []
    put_back = bench.queue.lanes.put_back

    def join_and_put_back(
        closure: Closure, attempt: int, **options: Any
    ) -> bool:
        joined.append(bench.worker.join(0.0))
        return put_back(closure, attempt, **options)

    def run() -> None:
        begun.set()
        assert go_on.wait(_TIMEOUT_SECONDS)

    monkeypatch.setattr(bench.queue.lanes, "put_back", join_and_put_back)
    bench.queue.put(Closure(run))
    assert begun.wait(_TIMEOUT_SECONDS)
    bench.worker.abandon()
    assert joined == [False]
    go_on.set()
    bench.queue.join()


def test_nothing_to_abandon(bench: _Bench) -> None:
    bench.worker.abandon()
    assert bench.counters.value("closures_abandoned") == 0


def test_trouble_with_the_device_ends_the_closure(bench: _Bench) -> None:
    bench.devices.append("no device")
    bench.queue.put(Closure(lambda: None))
    with pytest.raises(ValueError, match="no device"):
        bench.queue.join()

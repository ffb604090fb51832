"""Tests of a lock whose waiting threads do not form a convoy."""

import resource
import signal
import threading
import time
from collections.abc import Callable

import pytest

from tfps_plugin.coordinator.lanes.convoy_free_lock import ConvoyFreeLock

_TIMEOUT_SECONDS = 60.0


def test_one_at_a_time() -> None:
    lock = ConvoyFreeLock()
    total = 0

    def add() -> None:
        nonlocal total
        for _ in range(20_000):
            with lock:
                before = total
                # Anything may run here, if the lock lets it.
                threading.current_thread()
                total = before + 1

    _run_together(add, 4)
    assert total == 80_000


def test_an_error_inside_gives_it_back() -> None:
    lock = ConvoyFreeLock()
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.is_mine


def test_interrupts_leave_it_free() -> None:
    lock = ConvoyFreeLock()
    fired: list[bool] = []

    def interrupt(*_: object) -> None:
        fired.append(True)
        raise _InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    num_interrupted = 0
    try:
        for _ in range(300):
            fired.clear()
            # Interrupts, like Ctrl-C, between any two operations of Python.
            try:
                _take_until(fired, lock)
            except _InterruptedError:
                num_interrupted += 1
            assert not lock.is_mine
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    # Python drops exceptions that are raised during garbage collection.
    assert num_interrupted > 250


def test_a_condition_lets_another_thread_have_it() -> None:
    lock = ConvoyFreeLock()
    asked, answered = lock.condition(), lock.condition()
    seen: list[str] = []

    def answer() -> None:
        with lock:
            while not seen:
                assert asked.wait(_TIMEOUT_SECONDS)
            seen.append("answer")
            answered.notify()

    thread = threading.Thread(target=answer)
    thread.start()
    with lock:
        seen.append("question")
        asked.notify()
        while len(seen) < 2:
            assert answered.wait(_TIMEOUT_SECONDS)
    thread.join(_TIMEOUT_SECONDS)
    assert seen == ["question", "answer"]


def test_threads_do_not_change_places_whenever_they_meet() -> None:
    lock = ConvoyFreeLock()
    times = 30_000

    def take() -> None:
        for _ in range(times):
            with lock:
                sum(range(50))
            sum(range(50))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    _run_together(take, 2)
    changes = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before
    # About 100; with a `threading.Lock` 4,700 and more.
    assert changes < 1500


class _InterruptedError(BaseException):
    pass


def _take_until(fired: list[bool], lock: ConvoyFreeLock) -> None:
    begun_at = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    while not fired:
        with lock:
            pass
        waited_seconds = time.monotonic() - begun_at
        assert waited_seconds < _TIMEOUT_SECONDS
        if waited_seconds > 1.0:
            # Python may miss a signal that arrives while it clears the last
            # one. It checks again after it has released its own lock.
            time.sleep(0)


def _run_together(target: Callable[[], None], number: int) -> None:
    start = threading.Barrier(number)

    def run() -> None:
        start.wait(_TIMEOUT_SECONDS)
        target()

    threads = [threading.Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT_SECONDS)

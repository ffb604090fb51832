"""Tests of threads that trace replicas in turn."""

import contextlib
import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.strategy.replicas.replica_threads import ReplicaThreads


class _Log:
    """Notes which replica has a turn."""

    def __init__(self) -> None:
        self.turns: list[int] = []

    @contextlib.contextmanager
    def turn(self, index: int) -> Iterator[None]:
        self.turns.append(index)
        yield


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Checks that every thread has ended by the end of a test."""
    yield
    assert not [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("tfps-replica")
    ]


def _threads() -> tuple[ReplicaThreads, _Log]:
    log = _Log()
    return ReplicaThreads(log.turn), log


def _meeting(
    threads: ReplicaThreads, together: Callable[[Any], list[Any]]
) -> list[Callable[[], Any]]:
    """Returns two replicas that meet once."""
    return [
        functools.partial(threads.meet, index, "it", None, together)
        for index in range(2)
    ]


def test_replicas_meet_in_their_order() -> None:
    threads, log = _threads()
    seen = []

    def replica(index: int) -> Callable[[], int]:
        def run() -> int:
            seen.append(("begins", index))
            got = threads.meet(
                index, "sum", index + 1, lambda given: [sum(given)] * 3
            )
            seen.append(("ends", index))
            return int(got) + index

        return run

    assert threads.run([replica(index) for index in range(3)]) == [6, 7, 8]
    assert log.turns == [0, 1, 2, 0, 1, 2]
    assert seen == [(what, i) for what in ("begins", "ends") for i in range(3)]


def test_the_caller_does_what_they_meet_for() -> None:
    threads, _ = _threads()
    where = []

    def together(given: Any) -> list[None]:
        where.append(threading.current_thread())
        return [None] * len(given)

    threads.run(_meeting(threads, together))
    assert where == [threading.current_thread()]


def test_an_error_ends_all_replicas() -> None:
    threads, _ = _threads()
    ended = []

    def waits() -> None:
        try:
            threads.meet(0, "it", None, lambda given: list(given))
        finally:
            ended.append(True)

    def fails() -> None:
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        threads.run([waits, fails])
    assert ended == [True]


def test_an_error_of_what_they_meet_for_ends_all_replicas() -> None:
    threads, _ = _threads()

    def together(given: Any) -> list[Any]:
        del given
        raise ValueError("together")

    with pytest.raises(ValueError, match="together"):
        threads.run(_meeting(threads, together))


def test_the_code_of_a_step_does_not_handle_the_end() -> None:
    threads, _ = _threads()
    went_on = []

    def waits() -> None:
        with contextlib.suppress(Exception):
            threads.meet(0, "it", None, lambda given: list(given))
        went_on.append(True)

    def fails() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.run([waits, fails])
    assert not went_on


def test_a_replica_that_is_stopped_meets_nobody() -> None:
    threads, _ = _threads()

    def waits() -> None:
        try:
            threads.meet(0, "it", None, lambda given: list(given))
        finally:
            threads.meet(0, "another one", None, lambda given: list(given))

    def fails() -> None:
        raise ValueError("my own")

    with pytest.raises(ValueError, match="my own"):
        threads.run([waits, fails])


def test_replicas_have_to_meet_for_the_same() -> None:
    threads, _ = _threads()

    def meets() -> None:
        threads.meet(0, "a lookup", None, lambda given: list(given))

    with pytest.raises(
        errors.UnsupportedError,
        match="replica 0 a lookup, replica 1 its end came next",
    ):
        threads.run([meets, lambda: None])

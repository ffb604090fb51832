"""Turns of the threads that drive a worker."""

import threading

from tfps_plugin.cluster.calls.turns import Turns

_SECONDS = 30.0


class _Runner:
    """Takes a turn on a thread of its own, until it is told to end it."""

    def __init__(self, turns: Turns, *, alone: bool = False) -> None:
        self.has_begun = threading.Event()
        self._may_end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(turns, alone))
        self._thread.start()

    def _run(self, turns: Turns, alone: bool) -> None:
        with turns.turn(alone=alone):
            self.has_begun.set()
            assert self._may_end.wait(_SECONDS)

    @property
    def thread_id(self) -> int:
        assert self._thread.ident is not None
        return self._thread.ident

    def end(self) -> None:
        self._may_end.set()
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()


def _wait_until_one_waits(turns: Turns) -> None:
    done = threading.Event()
    for _ in range(3000):
        with turns._changed:
            if turns._num_waiting_alone:
                return
        done.wait(0.01)
    raise AssertionError("nobody waits to be alone")


def test_nobody_waits_for_a_thread_that_is_given_up() -> None:
    turns = Turns(wait_seconds=_SECONDS)
    hanging = [_Runner(turns), _Runner(turns)]
    assert all(each.has_begun.wait(_SECONDS) for each in hanging)
    alone = _Runner(turns, alone=True)
    _wait_until_one_waits(turns)
    for each in hanging:
        assert not alone.has_begun.is_set()
        turns.give_up(each.thread_id)
    assert alone.has_begun.wait(_SECONDS)
    # Its late end is not taken for another one's.
    hanging[0].end()
    behind = _Runner(turns)
    assert not behind.has_begun.is_set()
    alone.end()
    assert behind.has_begun.wait(_SECONDS)
    for each in (hanging[1], behind):
        each.end()


def test_many_run_beside_one_another() -> None:
    turns = Turns()
    runners = [_Runner(turns) for _ in range(3)]
    assert all(runner.has_begun.wait(_SECONDS) for runner in runners)
    for runner in runners:
        runner.end()


def test_one_alone_waits_for_all_and_comes_before_those_behind() -> None:
    turns = Turns()
    first = _Runner(turns)
    assert first.has_begun.wait(_SECONDS)
    alone = _Runner(turns, alone=True)
    _wait_until_one_waits(turns)
    behind = _Runner(turns)
    assert not alone.has_begun.is_set()
    first.end()
    assert alone.has_begun.wait(_SECONDS)
    assert not behind.has_begun.is_set()
    alone.end()
    assert behind.has_begun.wait(_SECONDS)
    behind.end()


def test_nobody_waits_for_ever() -> None:
    turns = Turns(wait_seconds=0.01)
    first = _Runner(turns)
    assert first.has_begun.wait(_SECONDS)
    alone = _Runner(turns, alone=True)
    assert alone.has_begun.wait(_SECONDS)
    beside = _Runner(turns)
    assert beside.has_begun.wait(_SECONDS)
    for runner in (first, alone, beside):
        runner.end()


def test_a_turn_ends_with_an_error() -> None:
    turns = Turns(wait_seconds=0.01)
    try:
        with turns.turn(alone=True):
            raise ValueError
    except ValueError:
        pass
    assert not turns._running

"""Tests of moves, one after another."""

import threading
import time
import types
from typing import Any

import pytest

from tfps_plugin.cluster.chief import connection
from tfps_plugin.coordinator.elastic.ps_moves import PsMoves
from tfps_plugin.coordinator.elastic.safe_points import SafePoints

_SECONDS = 20.0


class _Moves:
    """Records what is called."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self.moved_on: int | None = None
        self._error = error

    def copy(self) -> None:
        self.calls.append("copy")

    def complete(self) -> None:
        self.calls.append("complete")
        if self._error is not None:
            raise self._error

    def go_on(self) -> int:
        self.moved_on = threading.get_ident()
        self.calls.append("go on")
        return 7


def _strategy() -> Any:
    return types.SimpleNamespace(
        session=types.SimpleNamespace(connection=connection.begin()),
        values_lock=threading.RLock(),
    )


def _soon() -> float:
    return time.monotonic() + _SECONDS


def test_variables_go_on_once_everything_is_copied() -> None:
    moves = _Moves()
    ps_moves = PsMoves(_strategy(), SafePoints(lambda seconds: True))
    num_bytes, _ = ps_moves.run(
        moves, _soon(), lambda: moves.calls.append("then")
    )
    assert num_bytes == 7
    assert moves.calls == ["copy", "complete", "go on", "then"]
    # An interrupt of this thread would not have split it.
    assert moves.moved_on != threading.get_ident()


def test_nothing_goes_on_after_a_failure() -> None:
    moves = _Moves(ValueError("lost"))
    ps_moves = PsMoves(_strategy(), SafePoints(lambda seconds: True))
    with pytest.raises(ValueError, match="lost"):
        ps_moves.run(moves, _soon(), lambda: None)
    assert moves.calls == ["copy", "complete"]


def test_who_waits_for_its_turn_lets_the_other_change_go_on() -> None:
    strategy, moves = _strategy(), _Moves()
    # This thread is that of the program, which the other change waits for.
    points = SafePoints(lambda seconds: True)
    has_turn = threading.Event()

    def change() -> None:
        ps_moves = PsMoves(strategy, points)
        with ps_moves.turn(_soon()):
            has_turn.set()
            ps_moves.run(moves, _soon(), lambda: None)

    other = threading.Thread(target=change)
    other.start()
    assert has_turn.wait(_SECONDS)
    with PsMoves(strategy, points).turn(_soon()):
        assert moves.calls[-1] == "go on"
    other.join(_SECONDS)


def test_a_turn_that_does_not_come_is_waited_for_until_the_deadline() -> None:
    strategy = _strategy()
    points = SafePoints(lambda seconds: True)
    with PsMoves(strategy, points).turn(_soon()):
        found: list[BaseException] = []

        def wait() -> None:
            try:
                with PsMoves(strategy, points).turn(time.monotonic()):
                    pass
            except TimeoutError as error:
                found.append(error)

        other = threading.Thread(target=wait)
        other.start()
        other.join(_SECONDS)
    assert "Another change" in str(found[0])

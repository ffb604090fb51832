"""Tests that objects of an ended connection are refused."""

import weakref

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.chief.connection import Connection


def test_a_connection_that_lasts_refuses_nothing() -> None:
    lasting = Connection()
    lasting.require()
    assert not lasting.is_over


def test_one_that_has_ended_says_why() -> None:
    ended = Connection()
    assert ended.end("superseded by a newer strategy")
    assert ended.is_over
    with pytest.raises(
        errors.StrategySupersededError, match="superseded by a newer strategy"
    ):
        ended.require()
    # The first reason stays.
    ended.end("closed")
    with pytest.raises(errors.StrategySupersededError, match="superseded"):
        ended.require()


def test_what_depends_on_it_ends_with_it_once() -> None:
    told: list[str] = []
    ended = Connection()

    def first(error: errors.StrategySupersededError) -> bool:
        told.append(f"first: {error}")
        # A dependent that is called can no longer use the connection.
        assert ended.is_over
        return True

    def busy(error: errors.StrategySupersededError) -> bool:
        told.append("busy")
        return False

    def gone(error: errors.StrategySupersededError) -> bool:
        raise AssertionError("it has left")

    ended.on_end(first)
    ended.on_end(busy)
    leave = ended.on_end(gone)
    leave()
    leave()
    assert not ended.end("superseded")
    assert ended.end("superseded")
    assert len(told) == 2
    assert "The strategy was superseded" in told[0]


class _Notes:
    def __init__(self) -> None:
        self.words: list[str] = []


class _Others(_Notes):
    pass


def test_a_connection_has_one_part_of_each_kind() -> None:
    one, other = Connection(), Connection()
    one.part(_Notes).words.append("of one")
    assert one.part(_Notes).words == ["of one"]
    assert one.part(_Others).words == []
    assert other.part(_Notes).words == []


def test_parts_end_with_their_connection() -> None:
    ended = Connection()
    reference = weakref.ref(ended.part(_Notes))
    found: list[object] = []

    def dependent(error: errors.StrategySupersededError) -> bool:
        # A finalizer may still use its objects.
        found.append(reference())
        return True

    ended.on_end(dependent)
    ended.end("superseded")
    assert found.pop() is not None
    assert reference() is None


def test_what_is_made_now_belongs_to_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "_present", connection._Present())
    before = connection.present()
    newest = connection.begin()
    assert connection.present() is newest is not before
    # The connection of the process alone lasts, also after the other's end.
    before.require()
    newest.end("closed")
    connection.present().require()

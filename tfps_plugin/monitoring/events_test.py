"""Tests of the events."""

import logging

import pytest

from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.events import Event
from tfps_plugin.monitoring.events import Events

_LOST = events.WorkerLost(1, "host:1", "connection refused")


def test_subscribers_get_events_until_they_leave() -> None:
    board = Events()
    seen: list[Event] = []
    unsubscribe = board.subscribe(seen.append)
    board.publish(_LOST)
    unsubscribe()
    unsubscribe()
    board.publish(_LOST)
    assert seen == [_LOST]


def test_same_callable_twice_is_two_subscriptions() -> None:
    board = Events()
    seen: list[Event] = []
    first = board.subscribe(seen.append)
    board.subscribe(seen.append)
    first()
    board.publish(_LOST)
    assert seen == [_LOST]


def test_events_are_logged_at_their_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="tfps_plugin"):
        Events().publish(_LOST)
        Events().publish(events.WorkerReadmitted(1, "host:1", 2, 3.25))
        Events().publish(Event())
    assert [record.levelname for record in caplog.records] == [
        "WARNING",
        "WARNING",
        "INFO",
    ]
    assert caplog.records[0].name == "tfps_plugin.monitoring"
    # For handlers that take a record apart.
    assert vars(caplog.records[0])["event"] == _LOST
    assert "Worker 1 at host:1 is lost: connection refused" in caplog.text
    assert "back after 3.2 s (generation 2)" in caplog.text


def test_a_raising_subscriber_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = Events()
    seen: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("broken subscriber")

    board.subscribe(broken)
    board.subscribe(seen.append)
    board.publish(_LOST)
    assert seen == [_LOST]
    assert "broken subscriber" in caplog.text


@pytest.mark.parametrize(
    "event",
    [
        _LOST,
        events.WorkerReadmitted(1, "host:1", 1, 0.0),
        events.WorkerJoined(1, "host:1", 12.5),
        events.WorkerSlow(1, "host:1", 2.5, 10.0, "input", "it waits"),
        events.WorkerSlow(1, "host:1", 2.5, 10.0, "input", "", True),
        events.NoWorkerLeft(30.0, 600.0),
        events.ParameterServerLost(0, "host:2", "restarted"),
        events.ClosureRetried(1, 2, "UnavailableError: ..."),
    ],
)
def test_every_event_reads_as_a_sentence(event: Event) -> None:
    assert len(str(event).split()) >= 8
    assert event.level >= logging.INFO

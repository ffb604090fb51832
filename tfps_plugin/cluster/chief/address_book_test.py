"""Tests of tasks that come back at another address."""

import logging
from collections.abc import Iterable
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster.chief.address_book import AddressBook
from tfps_plugin.cluster.spec import ClusterSpec

_BEFORE = ClusterSpec(("a:1", "b:1"), ("p:1", "q:1"), "c:1")
_AFTER = ClusterSpec(("a:1", "b:2"), ("p:2", "q:1"), "c:1")


def test_everybody_begins_where_the_cluster_says() -> None:
    book = AddressBook(_BEFORE)
    for task in _BEFORE.serving_tasks:
        assert book.now(task) == task
        assert book.look_again(task) == task
    assert book.spec() == _BEFORE


def test_who_was_looked_for_is_found_and_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    book = AddressBook(_BEFORE, lambda: _AFTER)
    worker, ps = _BEFORE.workers[1], _BEFORE.parameter_servers[0]
    with caplog.at_level(logging.INFO, "tfps_plugin.cluster"):
        assert book.look_again(worker).address == "b:2"
    assert "worker 1 is to be found at b:2, no longer at b:1" in caplog.text
    assert book.now(worker) == _AFTER.workers[1]
    assert book.now(ps) == ps
    assert book.spec() == ClusterSpec(("a:1", "b:2"), ("p:1", "q:1"), "c:1")
    book.look_again(ps)
    assert book.spec() == _AFTER


def test_the_resolver_is_not_asked_all_the_time() -> None:
    asked = []

    def look_up() -> ClusterSpec:
        asked.append(1)
        return _AFTER

    book = AddressBook(_BEFORE, look_up, interval_seconds=1000.0)
    for task in _BEFORE.serving_tasks:
        book.look_again(task)
    assert len(asked) == 1
    assert book.spec() == _AFTER
    book = AddressBook(_BEFORE, look_up, interval_seconds=0.0)
    for task in _BEFORE.serving_tasks:
        book.look_again(task)
    assert len(asked) == 1 + 4


def test_a_resolver_that_fails_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> ClusterSpec:
        raise errors.ClusterConfigurationError("no pods")

    book = AddressBook(_BEFORE, fail)
    for _ in range(3):
        task = _BEFORE.workers[0]
        assert book.look_again(task) == task
    assert caplog.text.count("no pods") == 1


def test_a_task_that_is_gone_is_looked_for_where_it_was() -> None:
    smaller = ClusterSpec(("a:1",), ("p:1", "q:1"), "c:1")
    book = AddressBook(_BEFORE, lambda: smaller)
    assert book.look_again(_BEFORE.workers[1]).address == "b:1"


_PODS = tuple(f"pod-{number}:1" for number in range(11))
# As their names are as text.
_SORTED = (*_PODS[:2], _PODS[10], *_PODS[2:10])


def _book_of_pods(described: tuple[str, ...], names: dict[str, str]) -> Any:
    """Returns a book of eleven workers, and what it has asked."""
    asked: list[str] = []

    def ask(addresses: Iterable[str], seconds: float) -> dict[str, str]:
        asked.extend(addresses)
        return names

    book = AddressBook(
        ClusterSpec(_PODS, ("p:1",)),
        lambda: ClusterSpec(described, ("p:1",)),
        ask=ask,
    )
    return book, asked


def test_in_a_list_in_another_order_nobody_is_taken_for_a_neighbour() -> None:
    book, asked = _book_of_pods(_SORTED, {})
    for task in ClusterSpec(_PODS, ("p:1",)).serving_tasks:
        assert book.look_again(task) == task
    assert not asked


def test_a_replaced_pod_is_found_by_what_it_tells() -> None:
    described = tuple(
        "new:1" if address == "pod-2:1" else address for address in _SORTED
    )
    task = ClusterSpec(_PODS, ("p:1",)).workers[2]
    for names in ({}, {"new:1": "/job:worker/replica:0/task:11"}):
        book, asked = _book_of_pods(described, names)
        assert book.look_again(task) == task
        assert asked == ["new:1"]
    book, _ = _book_of_pods(described, {"new:1": task.name})
    assert book.look_again(task).address == "new:1"
    assert book.now(task).address == "new:1"


def test_tasks_that_were_added_count() -> None:
    members = ClusterSpec(("a:1", "b:1", "c:1"), ("p:1", "q:1")).serving_tasks
    book = AddressBook(
        _BEFORE,
        lambda: ClusterSpec(("a:1", "c:1"), ("p:1", "q:1")),
        members=lambda: members,
    )
    # Its place is that of another one.
    assert book.look_again(_BEFORE.workers[1]) == _BEFORE.workers[1]

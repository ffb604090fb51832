"""Tests of the changes that a description of the cluster asks for."""

from tfps_plugin.coordinator.elastic import described_changes
from tfps_plugin.coordinator.elastic.described_changes import Changes

_KNOWN = ("a", "b", "c")


def _find(
    described: tuple[str, ...],
    indices: tuple[int, ...] = (0, 1, 2),
    now: tuple[str, ...] = _KNOWN,
) -> Changes:
    return described_changes.find(described, _KNOWN, now, indices)


def test_nothing_changes() -> None:
    assert not _find(_KNOWN)
    # It is elsewhere now, which others look up.
    assert not _find(("a", "x", "c"))


def test_workers_are_added_at_the_end() -> None:
    assert _find(("a", "b", "c", "d", "e")) == Changes(("d", "e"))


def test_workers_are_removed_from_the_end() -> None:
    assert _find(("a",)) == Changes(removed=(2, 1))
    assert _find(("a", "x"), now=("a", "x", "c")) == Changes(removed=(2,))


def test_a_removed_worker_comes_back_with_its_index() -> None:
    assert _find(("a", "b", "x"), (0, 1)) == Changes(("c",))


def test_who_is_missing_in_the_middle_is_not_removed() -> None:
    changes = _find(("a", "c"))
    assert not changes
    assert "['a', 'c']" in changes.problem

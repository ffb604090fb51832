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


def test_who_is_missing_in_the_middle_has_left() -> None:
    assert _find(("a", "c")) == Changes(removed=(1,))
    # Then the others are known by their addresses.
    assert not _find(("a", "c"), (0, 2))
    assert _find(("a", "c", "d"), (0, 2)).unknown == ("d",)


def _sorted(*numbers: int) -> tuple[str, ...]:
    """Returns addresses of pods in the order of their names as text."""
    return tuple(f"{pod}:1" for pod in sorted(f"pod-{n}" for n in numbers))


def _find_pods(
    described: tuple[str, ...], known: tuple[str, ...], **told: int
) -> Changes:
    by_address = {f"{pod}:1": index for pod, index in told.items()}
    by_address = {a.replace("_", "-"): i for a, i in by_address.items()}
    return described_changes.find(
        described, known, known, range(len(known)), told=by_address
    )


_TEN = tuple(f"pod-{number}:1" for number in range(10))


def test_names_that_are_sorted_as_text_are_followed() -> None:
    eleven = (*_TEN, "pod-10:1")
    described = _sorted(*range(11))
    assert described[2] == "pod-10:1"
    assert _find_pods(described, _TEN) == Changes(("pod-10:1",))
    # The others are where they were.
    assert not _find_pods(described, eleven)
    # All that are left are in the order of indices again.
    assert _find_pods(_sorted(*range(10)), eleven) == Changes(removed=(10,))
    assert _find_pods(_sorted(*range(9)), eleven) == Changes(removed=(10, 9))


def test_the_order_of_several_is_what_their_processes_tell() -> None:
    nine, described = _TEN[:9], _sorted(*range(12))
    changes = _find_pods(described, nine)
    assert not changes
    assert changes.unknown == ("pod-10:1", "pod-11:1", "pod-9:1")
    assert "['pod-10:1', 'pod-11:1', 'pod-9:1'] do not tell" in changes.problem
    # One is known; the others do not serve yet.
    changes = _find_pods(described, nine, pod_9=9, pod_11=11)
    assert changes.added == ("pod-9:1",)
    assert changes.unknown == ("pod-10:1",)
    changes = _find_pods(described, nine, pod_9=9, pod_11=11, pod_10=10)
    assert changes == Changes(("pod-9:1", "pod-10:1", "pod-11:1"))
    # An index that another one has, or that is not the next one.
    for told in ((9, 9, 10), (3, 9, 10)):
        changes = _find_pods(
            described, nine, pod_9=told[0], pod_10=told[1], pod_11=told[2]
        )
        assert not changes
        assert "have one index" in changes.problem
    changes = _find_pods(described, nine, pod_9=9, pod_10=10, pod_11=12)
    assert changes.added == ("pod-9:1", "pod-10:1")
    assert "[9, 10, 12], of which some are left out" in changes.problem


def test_random_names_are_followed() -> None:
    assert _find(("x", "a", "b", "c")) == Changes(("x",))
    assert _find(("c", "a", "b")) == Changes()
    assert _find(("c", "b")) == Changes(removed=(0,))
    changes = _find(("x", "a", "y", "b", "c"))
    assert not changes
    assert changes.unknown == ("x", "y")


def test_a_replaced_task_is_known_by_what_it_tells() -> None:
    def find(**told: int) -> Changes:
        return described_changes.find(
            ("x", "a", "c"), _KNOWN, _KNOWN, (0, 1, 2), told=told
        )

    changes = find()
    assert not changes
    assert changes.problem
    # It is the missing one, which others look up; or a new one.
    assert find(x=1) == Changes()
    assert find(x=3) == Changes(("x",), (1,))
    # Among names sorted as text.
    eleven = (*_TEN, "pod-10:1")
    replaced = tuple(
        "new:1" if address == "pod-2:1" else address
        for address in _sorted(*range(11))
    )
    assert not _find_pods(replaced, eleven)
    assert _find_pods(replaced, eleven, new=2) == Changes()


def test_a_removed_task_comes_back_in_any_order() -> None:
    assert _find(("b", "c", "a"), (0, 1)) == Changes(("c",))
    assert _find(("x", "b", "c", "a"), (0, 1)) == Changes(("c", "x"))
    # Elsewhere: only it knows that it is no new one.
    described = ("b", "x", "a")
    assert _find(described, (0, 1)).unknown == ("x",)
    changes = described_changes.find(
        described, _KNOWN, _KNOWN, (0, 1), told={"x": 2}
    )
    assert changes == Changes(("c",))


def test_fewer_tasks_of_which_one_is_elsewhere() -> None:
    changes = _find(("a", "x"))
    assert not changes
    assert changes.unknown == ("x",)
    for index, other in ((1, 2), (2, 1)):
        changes = described_changes.find(
            ("a", "x"), _KNOWN, _KNOWN, (0, 1, 2), told={"x": index}
        )
        assert changes == Changes(removed=(other,))

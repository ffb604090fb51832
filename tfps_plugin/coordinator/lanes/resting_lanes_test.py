"""Tests of the choice of a lane."""

import collections

import hypothesis
from hypothesis import strategies as st

from tfps_plugin.coordinator.lanes.resting_lanes import RestingLanes


def test_there_may_be_none() -> None:
    resting: RestingLanes[str] = RestingLanes()
    assert resting.take() is None
    resting.add(3, "a")
    assert resting.take() == (3, "a")
    assert resting.take() is None


def test_work_goes_to_whoever_has_least() -> None:
    resting: RestingLanes[str] = RestingLanes()
    for worker_index in (0, 1):
        for name in ("cold", "warm"):
            resting.add(worker_index, name)
    assert [resting.take() for _ in range(4)] == [
        (0, "warm"),
        (1, "warm"),
        (0, "cold"),
        (1, "cold"),
    ]


def test_little_work_goes_round() -> None:
    resting: RestingLanes[str] = RestingLanes()
    for worker_index in range(3):
        resting.add(worker_index, "lane")
    workers = []
    for _ in range(7):
        taken = resting.take()
        assert taken is not None
        workers.append(taken[0])
        resting.add(*taken)
    assert workers == [0, 1, 2, 0, 1, 2, 0]


def test_paused_workers_are_passed_over() -> None:
    resting: RestingLanes[str] = RestingLanes()
    resting.add(0, "first")
    resting.pause(0)
    resting.add(0, "second")
    assert resting.is_paused(0)
    assert resting.take() is None
    resting.add(1, "other")
    assert resting.take() == (1, "other")
    resting.resume(0)
    resting.resume(0)
    assert not resting.is_paused(0)
    assert resting.take() == (0, "second")
    assert resting.take() == (0, "first")
    assert resting.take() is None


def test_at_the_end_all_come() -> None:
    resting: RestingLanes[str] = RestingLanes()
    resting.add(0, "a")
    resting.add(1, "b")
    resting.pause(1)
    assert sorted(resting.take_all()) == ["a", "b"]
    assert resting.take_all() == []
    resting.resume(1)
    assert resting.take() is None


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "take", "pause", "resume"]),
            st.integers(0, 3),
        )
    )
)
def test_no_lane_is_lost_and_the_idlest_comes_first(
    actions: list[tuple[str, int]],
) -> None:
    resting: RestingLanes[int] = RestingLanes()
    expected: dict[int, list[int]] = collections.defaultdict(list)
    paused: set[int] = set()
    for number, (action, worker_index) in enumerate(actions):
        if action == "add":
            resting.add(worker_index, number)
            expected[worker_index].append(number)
        elif action == "pause":
            resting.pause(worker_index)
            paused.add(worker_index)
        elif action == "resume":
            resting.resume(worker_index)
            paused.discard(worker_index)
        else:
            taken = resting.take()
            most = max(
                (
                    len(lanes)
                    for worker, lanes in expected.items()
                    if worker not in paused
                ),
                default=0,
            )
            if taken is None:
                assert most == 0
            else:
                assert taken[0] not in paused
                assert len(expected[taken[0]]) == most
                assert expected[taken[0]].pop() == taken[1]
    left = [lane for lanes in expected.values() for lane in lanes]
    assert sorted(resting.take_all()) == sorted(left)

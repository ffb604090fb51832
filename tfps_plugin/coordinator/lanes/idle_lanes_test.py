"""Tests of the choice of a lane."""

import collections

import hypothesis
from hypothesis import strategies as st

from tfps_plugin.coordinator.lanes.idle_lanes import IdleLanes


def test_there_may_be_none() -> None:
    idle: IdleLanes[str] = IdleLanes()
    assert idle.take() is None
    idle.add(3, "a")
    assert idle.take() == (3, "a")
    assert idle.take() is None


def test_work_goes_to_whoever_has_least() -> None:
    idle: IdleLanes[str] = IdleLanes()
    for worker_index in (0, 1):
        for name in ("cold", "warm"):
            idle.add(worker_index, name)
    assert [idle.take() for _ in range(4)] == [
        (0, "warm"),
        (1, "warm"),
        (0, "cold"),
        (1, "cold"),
    ]


def test_little_work_goes_round() -> None:
    idle: IdleLanes[str] = IdleLanes()
    for worker_index in range(3):
        idle.add(worker_index, "lane")
    workers = []
    for _ in range(7):
        taken = idle.take()
        assert taken is not None
        workers.append(taken[0])
        idle.add(*taken)
    assert workers == [0, 1, 2, 0, 1, 2, 0]


def test_paused_workers_are_passed_over() -> None:
    idle: IdleLanes[str] = IdleLanes()
    idle.add(0, "first")
    idle.pause(0)
    idle.add(0, "second")
    assert idle.is_paused(0)
    assert idle.take() is None
    idle.add(1, "other")
    assert idle.take() == (1, "other")
    idle.resume(0)
    idle.resume(0)
    assert not idle.is_paused(0)
    assert idle.take() == (0, "second")
    assert idle.take() == (0, "first")
    assert idle.take() is None


def test_a_lane_of_one_worker() -> None:
    idle: IdleLanes[str] = IdleLanes()
    for name in ("cold", "warm"):
        for worker_index in (0, 1):
            idle.add(worker_index, name)
    assert idle.take_of(2) is None
    assert idle.take_of(1) == "warm"
    assert idle.take() == (0, "warm"), "it has more idle lanes"
    idle.pause(1)
    assert idle.take_of(1) is None
    idle.resume(1)
    assert idle.take_of(1) == "cold"
    assert idle.take_of(1) is None


def test_at_the_end_all_come() -> None:
    idle: IdleLanes[str] = IdleLanes()
    idle.add(0, "a")
    idle.add(1, "b")
    idle.pause(1)
    assert sorted(idle.take_all()) == ["a", "b"]
    assert idle.take_all() == []
    idle.resume(1)
    assert idle.take() is None


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "take", "take_of", "pause", "resume"]),
            st.integers(0, 3),
        )
    )
)
def test_no_lane_is_lost_and_the_idlest_comes_first(
    actions: list[tuple[str, int]],
) -> None:
    idle: IdleLanes[int] = IdleLanes()
    expected: dict[int, list[int]] = collections.defaultdict(list)
    paused: set[int] = set()
    for number, (action, worker_index) in enumerate(actions):
        if action == "add":
            idle.add(worker_index, number)
            expected[worker_index].append(number)
        elif action == "pause":
            idle.pause(worker_index)
            paused.add(worker_index)
        elif action == "resume":
            idle.resume(worker_index)
            paused.discard(worker_index)
        elif action == "take_of":
            lane = idle.take_of(worker_index)
            if worker_index in paused or not expected[worker_index]:
                assert lane is None
            else:
                assert lane == expected[worker_index].pop()
        else:
            taken = idle.take()
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
    assert sorted(idle.take_all()) == sorted(left)


def test_a_worker_that_is_drained_gets_what_is_bound_to_it() -> None:
    idle: IdleLanes[str] = IdleLanes()
    idle.add(0, "a")
    idle.add(1, "b")
    idle.drain(0)
    assert idle.are_drained
    assert idle.take() == (1, "b")
    assert idle.take() is None
    assert idle.take_of(0) == "a"
    idle.add(0, "a")
    idle.resume(0)
    assert not idle.are_drained
    assert idle.take() == (0, "a")

"""Tests of the rule who may begin a step."""

from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfps_plugin.training.bounded import clocks as rules
from tfps_plugin.training.bounded.clocks import Clocks


def _numbers(values: list[int]) -> tf.Tensor:
    return tf.constant(values, tf.int64)


def _clocks(
    made: list[int],
    waits: list[bool] | None = None,
    is_here: list[bool] | None = None,
) -> Clocks:
    all_true = [True] * len(made)
    return Clocks(
        _numbers(made),
        tf.constant(all_true if waits is None else waits),
        tf.constant(all_true if is_here is None else is_here),
    )


def _granted(clocks: Clocks, shares: list[int], bound: int) -> list[bool]:
    granted = rules.granted(clocks, _numbers(shares), _numbers([bound])[0])
    result: list[bool] = granted.numpy().tolist()
    return result


@pytest.mark.parametrize(
    ("made", "bound", "expected"),
    [
        ([3, 3, 3], 0, [True, True, True]),
        ([4, 3, 3], 0, [False, True, True]),
        ([5, 3, 4], 1, [False, True, True]),
        ([5, 3, 4], 2, [True, True, True]),
    ],
)
def test_nobody_begins_a_step_far_ahead_of_the_slowest(
    made: list[int], bound: int, expected: list[bool]
) -> None:
    assert _granted(_clocks(made), [9, 9, 9], bound) == expected


def test_who_has_left_holds_nobody() -> None:
    clocks = _clocks([4, 0, 4], is_here=[True, False, True])
    assert _granted(clocks, [9, 9, 9], 0) == [True, False, True]


def test_who_has_made_all_steps_holds_nobody_and_gets_no_more() -> None:
    assert _granted(_clocks([4, 3, 4]), [9, 3, 9], 0) == [True, False, True]


def test_who_is_no_member_holds_nobody() -> None:
    shares = _numbers([9, 0, 9])
    clocks = rules.begun(shares)
    assert _granted(clocks, [9, 0, 9], 0) == [True, False, True]


def test_who_is_in_a_step_does_not_begin_another() -> None:
    clocks = _clocks([3, 3], waits=[False, True])
    assert _granted(clocks, [9, 9], 5) == [False, True]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_bound_holds_and_nobody_waits_for_ever(data: Any) -> None:
    """Workers end their steps in any order, and some are lost."""
    num_workers = data.draw(st.integers(1, 4))
    bound = data.draw(st.integers(0, 3))
    shares = data.draw(
        st.lists(st.integers(0, 6), min_size=num_workers, max_size=num_workers)
    )
    clocks = rules.begun(_numbers(shares))
    made, lost, in_step = [0] * num_workers, set(), set()
    while True:
        running = [
            w for w, n in enumerate(shares) if made[w] < n and w not in lost
        ]
        assert rules.running(clocks, _numbers(shares)).numpy().tolist() == [
            w in running for w in range(num_workers)
        ]
        if not running:
            break
        granted = _granted(clocks, shares, bound)
        clocks = rules.after_grant(clocks, tf.constant(granted))
        slowest = min(made[w] for w in running)
        for worker, is_granted in enumerate(granted):
            if is_granted:
                assert worker in running
                assert worker not in in_step
                assert made[worker] - slowest <= bound
                in_step.add(worker)
        # All that may begin a step do so at once.
        assert {w for w in running if made[w] - slowest <= bound} <= in_step
        worker = data.draw(st.sampled_from(sorted(in_step)))
        is_made = data.draw(st.integers(0, 5)) > 0
        in_step.discard(worker)
        if is_made:
            made[worker] += 1
        else:
            lost.add(worker)
        clocks = rules.after_event(
            clocks, tf.constant(worker), tf.constant(is_made)
        )
    assert clocks.made.numpy().tolist() == made
    for worker, number in enumerate(shares):
        assert made[worker] == number or worker in lost

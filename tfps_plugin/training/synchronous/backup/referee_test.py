"""Tests of the rules by which a referee decides who counts."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.synchronous.backup import referee
from tfps_plugin.training.synchronous.backup.referee import LEFT
from tfps_plugin.training.synchronous.backup.referee import Round


def _state(
    number: int,
    tokens: Sequence[int],
    *,
    members: Sequence[int] | None = None,
    arrived: Sequence[int] = (),
    late: Sequence[int] = (),
) -> Round:
    """Returns a state; workers are given by their indices."""

    def vector(whom: Sequence[int]) -> tf.Tensor:
        return tf.constant([n in whom for n in range(len(tokens))])

    return Round(
        tf.constant(number, tf.int64),
        vector(range(len(tokens)) if members is None else members),
        tf.constant(tokens, tf.int64),
        vector(arrived),
        vector(late),
    )


def _indices(is_one_N: tf.Tensor) -> list[int]:
    return np.flatnonzero(is_one_N).tolist()


def _noted(state: Round, worker: int, stamp: int) -> Round:
    return referee.noted(
        state, tf.constant(worker), tf.constant(stamp, tf.int64)
    )


def _ruled(
    state: Round, num_backup: int, last: int = 100
) -> tuple[list[int], list[int], bool]:
    """Returns who counts, who gets a token, and whether it is over."""
    assert bool(referee.is_due(state, num_backup))
    made = referee.ruling(state, tf.constant(last, tf.int64), num_backup)
    return _indices(made.counts_N), _indices(made.grants_N), bool(made.is_over)


def test_all_members_begin_with_the_token_of_the_first_step() -> None:
    state = referee.beginning(
        tf.constant(4, tf.int64), tf.constant([True, False, True])
    )
    assert int(state.number) == 4
    assert state.tokens_N.numpy().tolist() == [4, 4, 4]
    assert _indices(state.is_member_N) == [0, 2]
    assert not _indices(state.has_arrived_N) + _indices(state.is_late_N)


@pytest.mark.parametrize(
    ("worker", "stamp", "members", "arrived", "late"),
    [
        (1, 7, [0, 1, 2], [0, 1], []),
        (1, 6, [0, 1, 2], [0], [1]),
        (1, LEFT, [0, 2], [0], []),
        # It is not a part of this step only for having said so twice.
        (0, 7, [0, 1, 2], [0], []),
        # What it has sent still counts.
        (0, LEFT, [1, 2], [0], []),
        # It is no member.
        (3, 7, [0, 1, 2], [0], []),
        (3, 2, [0, 1, 2], [0], []),
        (3, LEFT, [0, 1, 2], [0], []),
    ],
)
def test_arrivals_are_of_this_step_late_or_the_last(
    worker: int,
    stamp: int,
    members: list[int],
    arrived: list[int],
    late: list[int],
) -> None:
    state = _noted(
        _state(7, [7, 7, 7, 0], members=[0, 1, 2], arrived=[0]), worker, stamp
    )
    assert _indices(state.is_member_N) == members
    assert _indices(state.has_arrived_N) == arrived
    assert _indices(state.is_late_N) == late
    assert int(state.number) == 7


@pytest.mark.parametrize(
    ("num_members", "num_backup", "num_needed"),
    [(3, 1, 2), (3, 2, 1), (2, 1, 1), (1, 1, 1), (2, 5, 1), (8, 3, 5)],
)
def test_a_step_does_without_the_backup_workers_but_not_without_all(
    num_members: int, num_backup: int, num_needed: int
) -> None:
    state = _state(0, [0] * num_members)
    for number in range(num_needed):
        assert not bool(referee.is_due(state, num_backup))
        state = _noted(state, number, 0)
    assert _ruled(state, num_backup) == (
        list(range(num_needed)),
        list(range(num_needed)),
        False,
    )


def test_the_late_get_the_next_token_with_those_who_count() -> None:
    state = _state(7, [7, 7, 3, 7], arrived=[0, 1, 3], late=[2])
    assert _ruled(state, 1) == ([0, 1, 3], [0, 1, 2, 3], False)


def test_who_has_left_counts_but_gets_no_token() -> None:
    state = _state(7, [7, 7, 7], members=[0, 1], arrived=[1, 2])
    assert _ruled(state, 1) == ([1, 2], [1], False)


def test_after_the_last_step_those_get_a_token_who_would_wait_for_one() -> None:
    # 2 still computes the last step, 3 an earlier one; 4 waits.
    state = _state(9, [9, 9, 9, 5, 6], arrived=[0, 1], late=[4])
    assert _ruled(state, 3, last=10) == ([0, 1], [3, 4], False)


def test_the_late_make_a_step_that_nobody_else_can_make() -> None:
    state = _state(7, [7, 5, 4], members=[1, 2], late=[1])
    assert _ruled(state, 1) == ([], [1], False)
    # Another one may still come.
    state = _state(7, [7, 5, 4], members=[0, 1, 2], late=[1])
    assert not bool(referee.is_due(state, 2))


def test_it_is_over_without_members() -> None:
    assert _ruled(_state(7, [7, 7], members=[]), 1) == ([], [], True)
    # One step more: who has arrived has left after.
    state = _state(7, [7, 7], members=[], arrived=[1])
    assert _ruled(state, 1) == ([1], [], False)


def test_the_next_step_begins_without_arrivals() -> None:
    before = _state(7, [7, 7, 3, 7], arrived=[0, 1, 3], late=[2])
    made = referee.ruling(before, tf.constant(9, tf.int64), 1)
    after = referee.following(before, made)
    assert int(after.number) == 8
    assert after.tokens_N.numpy().tolist() == [8, 8, 8, 8]
    assert not _indices(after.has_arrived_N) + _indices(after.is_late_N)


def test_a_step_that_nobody_has_made_stays() -> None:
    before = _state(7, [7, 5, 4], members=[1, 2], late=[1])
    made = referee.ruling(before, tf.constant(9, tf.int64), 1)
    after = referee.following(before, made)
    assert int(after.number) == 7
    assert after.tokens_N.numpy().tolist() == [7, 7, 4]
    assert not _indices(after.is_late_N)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_workers_do_all_steps_are_made(seed: int) -> None:
    """Workers of any speed take tokens, arrive, and leave."""
    chance = random.Random(seed)
    num_workers, last = chance.randint(1, 5), 12
    num_backup = chance.randint(1, num_workers)
    state = referee.beginning(
        tf.constant(0, tf.int64), tf.ones([num_workers], tf.bool)
    )
    # The tokens that each worker has not taken, and the step that it makes.
    tokens: list[list[int]] = [[0] for _ in range(num_workers)]
    members = set(range(num_workers))
    num_made = 0
    while int(state.number) < last and members:
        if not bool(referee.is_due(state, num_backup)):
            # Somebody can still come: nobody waits forever.
            worker = chance.choice([w for w in sorted(members) if tokens[w]])
            if chance.random() < 0.03:
                members.discard(worker)
                state = _noted(state, worker, LEFT)
            else:
                state = _noted(state, worker, tokens[worker].pop())
            continue
        made = referee.ruling(state, tf.constant(last, tf.int64), num_backup)
        counts = _indices(made.counts_N)
        if counts:
            num_parts = len(members | {*counts})
            assert len(counts) == max(1, num_parts - num_backup)
            num_made += 1
        state = referee.following(state, made)
        assert int(state.number) == num_made
        for worker in _indices(made.grants_N):
            # At most one at a time, but for the one that ends it.
            assert not tokens[worker] or num_made == last
            tokens[worker].insert(0, num_made)
    if num_made == last:
        # Each ends after the last step, by this or the next token.
        for worker in members:
            assert not tokens[worker] or tokens[worker][0] >= last - 1
            latest = int(state.tokens_N[worker])
            assert latest >= last - 1
    else:
        assert not members

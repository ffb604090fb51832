"""Every split is read as often as was promised."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin import errors
from tfps_plugin.inputs.splits import SplitLedger
from tfps_plugin.inputs.splits import Visitation


def test_hands_out_in_order() -> None:
    ledger = SplitLedger(3)
    assert [ledger.take(worker) for worker in (5, 5, 1, 0)] == [0, 1, 2, None]
    assert not ledger.is_over


def test_is_over_when_all_are_finished() -> None:
    ledger = SplitLedger(2)
    for worker in (0, 1):
        split = ledger.take(worker)
        assert split is not None
        ledger.finish(split)
    assert ledger.is_over
    assert ledger.done == [0, 1]


def test_no_splits_are_over_at_once() -> None:
    assert SplitLedger(0).is_over


def test_workers_get_what_they_prefer_then_what_is_left() -> None:
    ledger = SplitLedger(3, preferred_workers=[0, 1, 2])
    assert [ledger.take(1), ledger.take(1), ledger.take(2)] == [1, 0, 2]


def test_a_lost_split_is_read_again_before_others() -> None:
    ledger = SplitLedger(3)
    ledger.take(0)
    ledger.lose(0)
    assert ledger.take(1) == 0
    assert ledger.done == []


def test_a_lost_split_is_left_out_at_most_once() -> None:
    ledger = SplitLedger(2, Visitation.AT_MOST_ONCE)
    ledger.take(0)
    ledger.lose(0)
    assert ledger.take(1) == 1
    ledger.finish(1)
    assert ledger.is_over
    assert ledger.done == [0, 1]


@pytest.mark.parametrize("end", ["finish", "lose"])
def test_what_nobody_reads_cannot_end(end: str) -> None:
    with pytest.raises(errors.InternalError, match="split=0"):
        getattr(SplitLedger(1), end)(0)


def test_visitation_by_name() -> None:
    assert Visitation.parse("at_most_once") is Visitation.AT_MOST_ONCE
    assert (
        Visitation.parse(Visitation.AT_LEAST_ONCE) is Visitation.AT_LEAST_ONCE
    )
    with pytest.raises(errors.InputError, match="visitation='exactly_once'"):
        Visitation.parse("exactly_once")


@given(
    num_splits=st.integers(0, 6),
    events=st.lists(
        st.tuples(st.sampled_from(["take", "finish", "lose"]), st.integers(0)),
        max_size=60,
    ),
    visitation=st.sampled_from(Visitation),
)
def test_every_split_ends_as_was_promised(
    num_splits: int, events: list[tuple[str, int]], visitation: Visitation
) -> None:
    ledger = SplitLedger(num_splits, visitation)
    held: list[int] = []
    finished: collections.Counter[int] = collections.Counter()
    lost: collections.Counter[int] = collections.Counter()

    def end(method: str, split: int) -> None:
        getattr(ledger, method)(split)
        (finished if method == "finish" else lost)[split] += 1

    for event, number in events:
        if event == "take":
            split = ledger.take(number)
            if split is not None:
                assert split not in held
                held.append(split)
        elif held:
            end(event, held.pop(number % len(held)))
    while not ledger.is_over:
        for split in held:
            end("finish", split)
        held = [
            split
            for split in iter(lambda: ledger.take(0), None)
            if split is not None
        ]
    assert ledger.done == list(range(num_splits))
    assert all(count == 1 for count in finished.values())
    if visitation is Visitation.AT_LEAST_ONCE:
        assert set(finished) == set(range(num_splits))
    else:
        assert all(count == 1 for count in lost.values())
        assert set(finished) | set(lost) == set(range(num_splits))
        assert not set(finished) & set(lost)


def test_what_is_done_need_not_be_read_again() -> None:
    ledger = SplitLedger(4, done=[1])
    assert ledger.done == [1]
    first, second = ledger.take(0), ledger.take(0)
    assert (first, second) == (0, 2)
    ledger.finish(2)
    # The one that is being read is read again.
    assert ledger.done == [1, 2]
    ledger.lose(0)
    assert ledger.done == [1, 2]


def test_where_nothing_is_read_twice_what_was_begun_is_done() -> None:
    ledger = SplitLedger(4, Visitation.AT_MOST_ONCE)
    assert (ledger.take(0), ledger.take(1)) == (0, 1)
    ledger.lose(0)
    assert ledger.done == [0, 1]


def test_all_is_done_before_it_begins() -> None:
    ledger = SplitLedger(2, done=[0, 1])
    assert ledger.is_over
    assert ledger.done == [0, 1]


def test_a_split_is_handed_on_whatever_becomes_of_lost_ones() -> None:
    ledger = SplitLedger(2, Visitation.AT_MOST_ONCE)
    ledger.take(0)
    ledger.hand_on(0)
    assert ledger.done == []
    assert ledger.take(1) == 0


def test_a_split_is_added_for_a_worker() -> None:
    ledger = SplitLedger(2, preferred_workers=[0, 1])
    assert ledger.add(5) == 2
    assert ledger.num_splits == 3
    assert ledger.take(5) == 2

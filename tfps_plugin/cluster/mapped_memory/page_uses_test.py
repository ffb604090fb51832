import itertools

import hypothesis
import numpy as np
from hypothesis import strategies as st

from tfps_plugin.cluster.mapped_memory import page_uses
from tfps_plugin.cluster.mapped_memory.page_uses import PageUses

_PAGE = 64


@hypothesis.given(
    st.lists(st.integers(0, 300), min_size=1),
    st.integers(1, 3 * _PAGE),
    st.integers(-_PAGE + 1, _PAGE - 1),
    st.integers(1, 40),
)
@hypothesis.settings(deadline=None)
def test_pages_of_rows_are_those_of_their_bytes(
    rows: list[int], row_bytes: int, shift: int, num_pages: int
) -> None:
    expected = {
        (row * row_bytes + shift + byte) // _PAGE
        for row in rows
        for byte in range(row_bytes)
    } & set(range(num_pages))
    uses = PageUses(num_pages, _PAGE)
    pages = uses.pages_of(np.array(rows, np.int32), row_bytes, shift)
    assert pages.tolist() == sorted(expected)


def test_a_page_is_missing_until_it_was_used() -> None:
    uses = PageUses(10, _PAGE)
    assert uses.use(np.array([2, 5]), 1).tolist() == [2, 5]
    assert uses.use(np.array([2, 6]), 2).tolist() == [6]
    assert uses.present_M.tolist() == [2, 5, 6]
    assert uses.give_up(2, 9).tolist() == [5, 6]
    assert uses.are_present(np.array([5, 2, 6])).tolist() == [
        False,
        True,
        False,
    ]
    assert uses.use(np.array([2, 5]), 10).tolist() == [5]


def test_pages_of_frequent_rows_stay() -> None:
    uses = PageUses(100, _PAGE)
    for now in range(1, 2000):
        uses.use(np.array([1, 2, 10 + now % 90]), now)
        if len(uses.present_M) > 10:
            uses.give_up(3, now)
        assert uses.are_present(np.array([1, 2])).all()


def test_pages_of_steps_that_have_not_ended_leave_last() -> None:
    uses = PageUses(10, _PAGE)
    for now in range(1, 5):
        uses.use(np.array([0, 1]), now)
    uses.use(np.array([7]), 5)
    # It was used once, and the others four times.
    assert uses.give_up(2, 7).tolist() == [0, 1]
    assert uses.give_up(1, 7).tolist() == [7]


def test_frequent_pages_stay_even_if_all_are_of_the_last_steps() -> None:
    uses = PageUses(50, _PAGE)
    for now in range(1, 10):
        uses.use(np.array([20]), now)
    uses.use(np.arange(50), 10)
    assert 20 not in uses.give_up(49, 10)


def test_pages_that_were_frequent_once_go() -> None:
    uses = PageUses(3, _PAGE)
    for now in range(1, 50):
        uses.use(np.array([0]), now)
    later = 20 * page_uses._HALF_LIFE
    for now in range(later, later + 5):
        uses.use(np.array([1]), now)
    uses.found(np.ones(3, bool))
    assert uses.give_up(2, later + 9).tolist() == [0, 2]


def test_only_resident_pages_are_chosen() -> None:
    uses = PageUses(6, _PAGE)
    uses.use(np.array([1]), 1)
    uses.found(np.array([True, False, True, False, False, True]))
    assert uses.give_up(0, 9).tolist() == []
    assert uses.give_up(10, 9).tolist() == [0, 2, 5]
    assert uses.give_up(1, 9).tolist() == []


@hypothesis.given(st.sets(st.integers(0, 60)), st.integers(0, 5))
def test_runs_are_the_pages_and_those_between(
    pages: set[int], most_between: int
) -> None:
    found = page_uses.runs(np.array(sorted(pages), int), most_between)
    inside = [
        set(range(first, first + number)) for first, number in found.tolist()
    ]
    assert pages <= set().union(*inside)
    for run in inside:
        assert {min(run), max(run)} <= pages
        assert all(
            pages & set(range(page, page + most_between + 2)) for page in run
        )
    for run, following in itertools.pairwise(inside):
        assert min(following) - max(run) - 1 > most_between
    if not most_between:
        assert set().union(*inside) == pages

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
    everywhere = np.ones(10, bool)
    assert set(uses.least_used(everywhere, 8, 2)) == {0, 1, 3, 4, 7, 8, 9} | (
        set(uses.least_used(everywhere, 8, 2)) & {5, 6}
    )
    assert uses.use(np.array([2]), 3).tolist() == []


def test_pages_of_frequent_rows_stay() -> None:
    uses = PageUses(100, _PAGE)
    resident = np.zeros(100, bool)
    for now in range(1, 2000):
        used = np.array([1, 2, 10 + now % 90])
        uses.use(used, now)
        resident[used] = True
        if np.count_nonzero(resident) > 10:
            resident[uses.least_used(resident, 3, now)] = False
        assert resident[[1, 2]].all()


def test_pages_that_were_frequent_once_go() -> None:
    uses = PageUses(3, _PAGE)
    for now in range(1, 50):
        uses.use(np.array([0]), now)
    later = 20 * page_uses._HALF_LIFE
    for now in range(later, later + 5):
        uses.use(np.array([1]), now)
    assert uses.least_used(np.ones(3, bool), 2, later + 5).tolist() == [0, 2]


def test_only_resident_pages_are_chosen() -> None:
    uses = PageUses(6, _PAGE)
    resident = np.array([True, False, True, False, False, True])
    assert uses.least_used(resident, 10, 1).tolist() == [0, 2, 5]
    assert uses.least_used(resident, 0, 1).tolist() == []


def test_runs() -> None:
    assert page_uses.runs(np.array([], int)) == []
    assert page_uses.runs(np.array([3, 4, 5, 8, 10, 11])) == [
        (3, 3),
        (8, 1),
        (10, 2),
    ]

"""Tests of the sample of the cells of the suite's table."""

from hypothesis import given
from hypothesis import strategies as st

from . import selection

_ROWS = st.integers(0, 100)
_CELLS = st.integers(1, 20)
_SHARES = st.integers(1, 30)
_SEEDS = st.integers(0, 10**6)


@given(_ROWS, _CELLS, _SHARES, _SEEDS)
def test_every_row_keeps_a_cell(
    row: int, num_cells: int, share: int, seed: int
) -> None:
    kept = selection.kept_cells(row, num_cells, share, seed)
    assert 1 <= len(kept) <= -(-num_cells // share)
    assert sorted(set(kept)) == kept
    assert set(kept) <= set(range(num_cells))


@given(_ROWS, _CELLS)
def test_a_share_of_one_is_all(row: int, num_cells: int) -> None:
    assert selection.kept_cells(row, num_cells, 1) == list(range(num_cells))


@given(_ROWS, _CELLS, _SHARES)
def test_rows_in_a_row_meet_every_cell(
    first: int, num_cells: int, share: int
) -> None:
    met = {
        cell
        for row in range(first, first + share)
        for cell in selection.kept_cells(row, num_cells, share)
    }
    assert met == set(range(num_cells))


@given(_ROWS, _CELLS, _SHARES, _SEEDS)
def test_seeds_that_follow_one_another_meet_every_cell(
    row: int, num_cells: int, share: int, first: int
) -> None:
    met = {
        cell
        for seed in range(first, first + max(share, num_cells))
        for cell in selection.kept_cells(row, num_cells, share, seed)
    }
    assert met == set(range(num_cells))

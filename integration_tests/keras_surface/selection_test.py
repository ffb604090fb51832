"""No row is left out, whatever the share; and rows differ in what they keep."""

from hypothesis import given
from hypothesis import strategies as st

from . import selection

_ROWS = st.integers(0, 100)
_CELLS = st.integers(1, 20)
_SHARES = st.integers(1, 30)


@given(_ROWS, _CELLS, _SHARES)
def test_every_row_keeps_a_cell(row: int, num_cells: int, share: int) -> None:
    kept = selection.kept_cells(row, num_cells, share)
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

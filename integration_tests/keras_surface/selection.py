"""Which cells of the suite's table run where not all of them do.

Pure: knows no pytest.
"""


def kept_cells(row: int, num_cells: int, share: int) -> list[int]:
    """The cells of a row that run, about one of `share`, never none.

    What the first row leaves out, later ones keep: of `share` rows that follow
    one another each cell is kept by at least one.

    Args:
        row: Number of the row, from 0.
        num_cells: How many cells it has.
        share: Of how many cells one is kept; 1: all are.

    Returns:
        Numbers of cells, from 0, in order.
    """
    kept = [cell for cell in range(num_cells) if (row + cell) % share == 0]
    return kept or [row % num_cells]

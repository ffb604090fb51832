"""Sample of the cells of the suite's table.

Pure: knows no pytest.
"""


def kept_cells(
    row: int, num_cells: int, share: int, seed: int = 0
) -> list[int]:
    """The cells of a row that run, about one of `share`, never none.

    What the first row leaves out, later ones keep: of `share` rows that follow
    one another each cell is kept by at least one.

    Args:
        row: Number of the row, from 0.
        num_cells: How many cells it has.
        share: Of how many cells one is kept; 1: all are.
        seed: Another one keeps other cells; `share` seeds that follow one
            another keep all.

    Returns:
        Numbers of cells, from 0, in order.
    """
    kept = [
        cell for cell in range(num_cells) if (row + cell + seed) % share == 0
    ]
    return kept or [(row + seed) % num_cells]

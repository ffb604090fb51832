"""Sample of the cells of the suite's table.

Pure: knows no pytest.
"""


def kept_cells(
    row: int, num_cells: int, share: int, seed: int = 0
) -> list[int]:
    """Returns the cells of a row that run: about one of `share`, never none.

    Among `share` consecutive rows, at least one keeps each cell.

    Args:
        row: Number of the row, from 0.
        num_cells: Number of cells of the row.
        share: One of this many cells is kept; 1 keeps all.
        seed: Each seed keeps different cells; `share` consecutive seeds keep
            all.

    Returns:
        Numbers of cells, from 0, in order.
    """
    kept = [
        cell for cell in range(num_cells) if (row + cell + seed) % share == 0
    ]
    return kept or [(row + seed) % num_cells]

"""Blocks of rows that are read or written in one message. Pure."""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np


def cut(pieces: Iterable[range], most: int) -> Iterator[list[range]]:
    """Cuts and joins ranges of rows, so that each block has as many as it may.

    Args:
        pieces: Ranges of rows.
        most: Largest number of rows of a block.

    Yields:
        The ranges of a block, in their order.
    """
    block: list[range] = []
    left = most
    for piece in pieces:
        rest = piece
        while rest:
            block.append(rest[:left])
            left -= len(block[-1])
            rest = rest[len(block[-1]) :]
            if not left:
                yield block
                block, left = [], most
    if block:
        yield block


def numbers(block: Sequence[range]) -> range | np.ndarray:
    """Returns the numbers of the rows of a block; a range, if it is one."""
    return block[0] if len(block) == 1 else array(block)


def array(block: Sequence[range]) -> np.ndarray:
    """Returns the numbers of the rows of a block as an array."""
    return np.concatenate([np.arange(rows.start, rows.stop) for rows in block])

"""Tests of blocks of rows."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from tfps_plugin.variables.saving import row_blocks


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))),
    st.integers(1, 30),
)
def test_blocks_are_full_and_have_all_rows_in_their_order(
    drawn: list[tuple[int, int]], most: int
) -> None:
    pieces = [range(start, start + length) for start, length in drawn]
    blocks = [
        list(row_blocks.numbers(block))
        for block in row_blocks.cut(pieces, most)
    ]
    found = [row for block in blocks for row in block]
    assert found == [row for piece in pieces for row in piece]
    assert all(len(block) == most for block in blocks[:-1])
    assert all(0 < len(block) <= most for block in blocks)


def test_a_range_stays_one() -> None:
    assert row_blocks.numbers([range(3, 7)]) == range(3, 7)
    np.testing.assert_array_equal(
        row_blocks.numbers([range(3, 5), range(9, 10)]), [3, 4, 9]
    )

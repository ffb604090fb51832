"""Tests of numbers of steps that are whole rounds."""

import pytest

from tfps_plugin.training.local import lengths


@pytest.mark.parametrize(
    ("num_steps", "more", "fewer"),
    [(0, 0, 0), (1, 4, 0), (4, 4, 4), (5, 8, 4), (10, 12, 8), (100, 100, 100)],
)
def test_numbers_are_rounded_to_whole_rounds(
    num_steps: int, more: int, fewer: int
) -> None:
    assert lengths.at_least(num_steps, 4) == more
    assert lengths.at_most(num_steps, 4) == fewer
    assert lengths.at_least(num_steps, 1) == num_steps
    assert lengths.at_most(num_steps, 1) == num_steps

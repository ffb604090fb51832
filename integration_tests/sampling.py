"""Samples of the cases of large test matrices.

Pure: knows no pytest.
"""

import random
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")


def sample(
    cases: Mapping[str, Sequence[Case]], counts: Mapping[str, int], seed: int
) -> list[Case]:
    """Draws some of the cases of each function.

    A sample does not depend on which other functions are collected.

    Args:
        cases: The cases of each function, by its name.
        counts: The number of cases to draw of each function, by its name.
        seed: Seed of the drawing.

    Returns:
        The drawn cases.
    """
    drawn = []
    for name, each in cases.items():
        count = min(counts[name], len(each))
        drawn += random.Random(f"{seed} {name}").sample(each, count)
    return drawn

"""Samples of tests, and of the cases of large test matrices.

Pure: knows no pytest.
"""

import math
import random
from collections.abc import Iterable
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


def share(
    tests: Mapping[str, Sequence[Case]], part: float, seed: int
) -> list[Case]:
    """Draws a share of the tests of each file; at least one of each.

    Args:
        tests: The tests of each file, by its name.
        part: The share, from 0 to 1.
        seed: Seed of the drawing.

    Returns:
        The drawn tests.
    """
    counts = {
        name: max(1, math.ceil(part * len(each)))
        for name, each in tests.items()
        if each
    }
    return sample({name: tests[name] for name in counts}, counts, seed)


def few(names: Iterable[str], part: float, seed: int) -> set[str]:
    """Draws a share of the files; at least one, if there are any.

    Args:
        names: Names of files.
        part: The share, from 0 to 1.
        seed: Seed of the drawing.

    Returns:
        The drawn files.
    """
    return {*share({"files": sorted(names)}, part, seed)}

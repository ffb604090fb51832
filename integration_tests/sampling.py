"""Samples of tests, and of the cases of large test matrices.

Pure: knows no pytest.
"""

import dataclasses
import math
import random
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")


@dataclasses.dataclass(frozen=True)
class Listed:
    """Test that may be in a sample.

    Attributes:
        file: Name of the file of which a sample has a share of the tests;
            None: the test is none of these.
        group: Name of the function or functions whose cases it is one of.
        cases: Number of these cases in a sample; None: no such number.
        is_always: Whether every sample has it.
    """

    file: str | None = None
    group: str = ""
    cases: int | None = None
    is_always: bool = False


def left_out(
    tests: Sequence[Listed],
    seed: int,
    *,
    share_of_files: float,
    share_of_tests: float,
) -> set[int]:
    """Returns the tests that are not in a sample.

    Of cases with a number, it has as many of each group. Of what is left in
    files it has a share of the files and, of each of these, of the tests.

    Args:
        tests: All tests.
        seed: Seed of the drawing.
        share_of_files: From 0 to 1.
        share_of_tests: Likewise.

    Returns:
        Their places in `tests`.
    """
    cases: dict[str, list[int]] = {}
    counts: dict[str, int] = {}
    files: dict[str, list[int]] = {}
    for place, test in enumerate(tests):
        if not test.is_always and test.cases is not None:
            cases.setdefault(test.group, []).append(place)
            counts[test.group] = test.cases
    out = {place for each in cases.values() for place in each}
    out -= {*sample(cases, counts, seed)}
    for place, test in enumerate(tests):
        if not test.is_always and test.file is not None and place not in out:
            files.setdefault(test.file, []).append(place)
    for name in {*files} - few(files, share_of_files, seed):
        out.update(files.pop(name))
    kept = {*share(files, share_of_tests, seed)}
    return out | {p for each in files.values() for p in each if p not in kept}


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

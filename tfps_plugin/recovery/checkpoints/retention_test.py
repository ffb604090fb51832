"""Tests of the selection of checkpoints to keep."""

import math

import hypothesis
import pytest
from hypothesis import strategies as st

from tfps_plugin.recovery.checkpoints.retention import Retention


@pytest.mark.parametrize(
    ("retention", "deleted"),
    [
        (Retention(None), []),
        (Retention(2), [1, 2, 3]),
        (Retention(2, keep_best=1), [1, 3]),
        (Retention(2, keep_best=1, larger_is_better=True), [2, 3]),
        (Retention(1, keep_best=2), [1, 4]),
        (Retention(9), []),
    ],
)
def test_the_newest_and_the_best_are_kept(
    retention: Retention, deleted: list[int]
) -> None:
    scores = {1: 9.0, 2: 1.0, 3: 2.0, 4: 3.0, 5: 2.0}
    kept_scores = scores if retention.keep_best < 2 else {2: 1.0, 3: 2.0}
    assert retention.to_delete([1, 2, 3, 4, 5], kept_scores) == deleted


def test_of_two_alike_the_newer_is_the_better() -> None:
    assert Retention(1, keep_best=1).best([1, 2], {1: 5.0, 2: 5.0}) == [2]


def test_what_is_no_number_is_never_the_best() -> None:
    assert Retention(1, keep_best=2).best([1, 2], {1: math.nan, 2: 5.0}) == [2]


@hypothesis.given(
    st.sets(st.integers(1, 50)),
    st.dictionaries(st.integers(1, 50), st.floats()),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
)
def test_the_newest_is_never_deleted(
    numbers: set[int],
    scores: dict[int, float],
    max_to_keep: int,
    keep_best: int,
    larger_is_better: bool,
) -> None:
    retention = Retention(max_to_keep, keep_best, larger_is_better)
    ordered = sorted(numbers)
    deleted = retention.to_delete(ordered, scores)
    kept = [n for n in ordered if n not in deleted]
    assert set(ordered[-max_to_keep:]) <= set(kept)
    assert len(kept) <= max_to_keep + keep_best
    assert set(retention.best(ordered, scores)) <= set(kept)

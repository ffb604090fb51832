"""Tests that each split counts once, whichever worker dies."""

import hypothesis
import numpy as np
from hypothesis import strategies as st

from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.split_counts import SplitCounts


def _one() -> Counted:
    return {"sum": [np.ones(1, "int64")]}


def _total(counts: SplitCounts, *, unfinished: bool = False) -> int:
    taken = counts.take(unfinished=unfinished)
    return int(taken["sum"][0][0]) if taken else 0


def test_a_split_counts_when_it_was_read_to_its_end() -> None:
    counts = SplitCounts(rereads=True)
    counts.add("a", _one())
    counts.add("a", _one())
    assert _total(counts) == 0
    counts.finish("a")
    assert _total(counts) == 2
    assert _total(counts) == 0, "handed out once"


def test_a_lost_split_does_not_count() -> None:
    counts = SplitCounts(rereads=True)
    counts.add("a", _one())
    counts.lose("a")
    assert _total(counts, unfinished=True) == 0


def test_a_call_that_ends_after_its_split_was_lost_does_not_count() -> None:
    """Another lane's call was running when the worker was found dead."""
    counts = SplitCounts(rereads=True)
    counts.lose("a")
    counts.add("a", _one())
    assert _total(counts, unfinished=True) == 0


def test_what_is_not_read_again_counts_as_far_as_it_was_read() -> None:
    counts = SplitCounts(rereads=False)
    counts.add("a", _one())
    counts.lose("a")
    counts.add("a", _one())
    assert _total(counts) == 2


def test_what_was_begun_counts_when_nobody_goes_on_with_it() -> None:
    counts = SplitCounts(rereads=True)
    counts.add("a", _one())
    assert _total(counts, unfinished=True) == 1


@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from(["add", "finish", "lose"]), st.integers(0, 3))
    )
)
def test_any_order_of_events(events: list[tuple[str, int]]) -> None:
    counts = SplitCounts(rereads=True)
    expected = 0
    open_counts = dict.fromkeys(range(4), 0)
    lost: set[int] = set()
    for what, split in events:
        if what == "add":
            counts.add(split, _one())
            open_counts[split] += split not in lost
        elif what == "finish":
            counts.finish(split)
            expected += open_counts[split]
            open_counts[split] = 0
        else:
            counts.lose(split)
            lost.add(split)
            open_counts[split] = 0
    assert _total(counts) == expected
    assert _total(counts, unfinished=True) == sum(open_counts.values())

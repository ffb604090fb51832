"""Tests of the histogram of staleness."""

from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.monitoring import staleness
from tfps_plugin.monitoring.staleness import Staleness

_VALUES = st.lists(st.integers(0, 5000), max_size=40)


def test_bins_are_powers_of_two() -> None:
    names = [*Staleness().counts()]
    assert names[:8] == [
        "staleness_updates",
        "staleness_sum",
        "staleness_0",
        "staleness_1",
        "staleness_2",
        "staleness_3_to_4",
        "staleness_5_to_8",
        "staleness_9_to_16",
    ]
    assert names[-2:] == ["staleness_513_to_1024", "staleness_1025_or_more"]


def test_each_update_is_in_the_bin_of_its_name() -> None:
    for value in range(1200):
        bins = Staleness.of([value]).counts()
        (name,) = (
            name.removeprefix("staleness_")
            for name in [*bins][2:]
            if bins[name]
        )
        first, _, last = name.partition("_to_")
        if name.endswith("_or_more"):
            assert value >= 1025
        else:
            assert int(first) <= value <= int(last or first)


@given(_VALUES, _VALUES)
def test_sums_are_those_of_all_updates(
    values: list[int], others: list[int]
) -> None:
    added = Staleness.of(values) + Staleness.of(others)
    assert added == Staleness.of(values + others)
    assert added.num_updates == len(values + others)
    assert added.total == sum(values + others)
    assert added.mean == sum(values + others) / max(1, len(values + others))


@given(_VALUES)
def test_a_vector_holds_all_of_it(values: list[int]) -> None:
    counted = Staleness.of(values)
    vector = [*counted.bins, counted.total, counted.largest]
    assert len(vector) == staleness.LENGTH
    assert Staleness.of_vector(vector) == counted


def test_it_prints_as_one_line() -> None:
    assert str(Staleness.of([0, 0, 3, 5])) == (
        "mean 2.00, largest 5 (0: 50%, 3 to 4: 25%, 5 to 8: 25%)"
    )
    assert str(Staleness()) == "mean 0.00, largest 0 ()"

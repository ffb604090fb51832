from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables.sharding.placement import BytePlacement


def test_one_large_variable_is_not_joined_by_others() -> None:
    placement = BytePlacement(2)
    assert placement.place(1000) == 0
    assert [placement.place(10) for _ in range(5)] == [1] * 5


def test_shards_of_one_variable_go_to_different_ps() -> None:
    placement = BytePlacement(3)
    placement.place(10_000)
    assert sorted(placement.place_all([5, 5, 5])) == [0, 1, 2]


def test_slots_count_where_they_are() -> None:
    placement = BytePlacement(2)
    placement.add(0, 100)
    assert placement.place(1) == 1
    assert placement.bytes_per_ps == (100, 1)


@given(st.integers(1, 5), st.lists(st.integers(1, 10_000), min_size=1))
def test_no_ps_is_ahead_by_more_than_the_largest_variable(
    num_ps: int, sizes: list[int]
) -> None:
    placement = BytePlacement(num_ps)
    for size in sizes:
        placement.place(size)
    held = placement.bytes_per_ps
    assert sum(held) == sum(sizes)
    assert max(held) - min(held) <= max(sizes)

"""Tests of places by traffic."""

import hypothesis
import pytest
from hypothesis import strategies as st

from tfps_plugin.recovery.resharding import traffic_plan
from tfps_plugin.recovery.resharding.layout_plan import Family
from tfps_plugin.variables.sharding.layout import RowLayout


def _table(servers: tuple[int, ...], num_rows: int = 100) -> Family:
    layout = RowLayout.even(num_rows, len(servers))
    return Family(num_rows * 8, layout, servers, is_sharded=True)


def test_hot_shards_of_several_tables_are_spread() -> None:
    # The first rows of each table are looked up most, all on server 0.
    families = [_table((0, 1)) for _ in range(4)]
    traffic = [[90.0, 10.0]] * 4
    assert traffic_plan.hottest_share(families, traffic) == 0.9
    planned = traffic_plan.plan(families, traffic, {0, 1})
    assert traffic_plan.hottest_share(planned, traffic) == pytest.approx(0.5)
    # No table is on one server alone.
    assert all(set(each.servers) == {0, 1} for each in planned)
    assert [each.layout for each in planned] == [f.layout for f in families]


def test_what_is_even_stays() -> None:
    families = [_table((0, 1)), _table((1, 0))]
    traffic = [[50.0, 10.0], [50.0, 10.0]]
    assert traffic_plan.plan(families, traffic, {0, 1}) == families


def test_no_server_gets_too_many_bytes() -> None:
    cold = [Family(1000, RowLayout((0, 1)), (0,)) for _ in range(4)]
    hot = [Family(10, RowLayout((0, 1)), (0,)) for _ in range(2)]
    traffic = [[1.0]] * 4 + [[100.0]] * 2
    planned = traffic_plan.plan([*cold, *hot], traffic, {0, 1})
    servers = [each.servers[0] for each in planned]
    assert servers[:4].count(0) == 2
    assert sorted(servers[4:]) == [0, 1]


def test_what_the_program_has_placed_stays() -> None:
    fixed = Family(10, RowLayout((0, 1)), (0,), is_fixed=True)
    other = Family(10, RowLayout((0, 1)), (0,))
    planned = traffic_plan.plan([fixed, other], [[5.0], [5.0]], {0, 1})
    assert [each.servers for each in planned] == [(0,), (1,)]


def test_nothing_is_hot_without_traffic() -> None:
    assert traffic_plan.hottest_share([_table((0, 1))], [[0.0, 0.0]]) == 0.0


@hypothesis.given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=4),
            st.lists(st.floats(0, 100), min_size=4, max_size=4),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
@hypothesis.settings(deadline=None)
def test_every_shard_has_one_place(
    case: list[tuple[list[int], list[float], bool]],
) -> None:
    families = []
    for servers, _, is_fixed in case:
        layout = RowLayout.even(20, len(servers))
        families.append(
            Family(160, layout, tuple(servers), True, is_fixed=is_fixed)
        )
    traffic = [own[: len(servers)] for servers, own, _ in case]
    planned = traffic_plan.plan(families, traffic, range(4))
    for old, new in zip(families, planned, strict=True):
        assert new.layout == old.layout
        assert set(new.servers) <= {0, 1, 2, 3}
        assert not old.is_fixed or new == old

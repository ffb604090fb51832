"""Tests of the layout for another number of parameter servers."""

import dataclasses

import hypothesis
from hypothesis import strategies as st

from tfps_plugin.recovery.resharding import layout_plan
from tfps_plugin.recovery.resharding.layout_plan import Family
from tfps_plugin.variables.sharding.layout import RowLayout


def _table(num_rows: int, servers: tuple[int, ...], **kwargs: bool) -> Family:
    return Family(
        num_rows * 8,
        RowLayout.even(num_rows, len(servers)),
        servers,
        is_sharded=True,
        **kwargs,
    )


def _whole(num_bytes: int, server: int, **kwargs: bool) -> Family:
    return Family(num_bytes, RowLayout((0, 1)), (server,), **kwargs)


def test_a_table_on_every_server_gets_a_shard_on_the_new_one() -> None:
    (table,) = layout_plan.plan([_table(12, (0, 1))], {0, 1}, {0, 1, 2})
    assert table.layout.offsets == (0, 4, 8, 12)
    assert sorted(table.servers) == [0, 1, 2]
    # Most rows stay: server 0 has the first, server 1 the last.
    assert table.servers[0] == 0
    assert table.servers[2] == 1 or table.servers[1] == 1


def test_shards_per_server_stay() -> None:
    (table,) = layout_plan.plan([_table(12, (0, 1, 0, 1))], {0, 1}, {0, 1, 2})
    assert table.layout.num_shards == 6
    assert sorted(table.servers) == [0, 0, 1, 1, 2, 2]


def test_a_table_on_the_last_server_has_one_shard() -> None:
    (table,) = layout_plan.plan([_table(12, (0, 1))], {0, 1}, {1})
    assert table.layout.offsets == (0, 12)
    assert table.servers == (1,)


def test_a_table_on_some_servers_keeps_its_shards() -> None:
    family = _table(12, (0, 1))
    (table,) = layout_plan.plan([family], {0, 1, 2}, {0, 2})
    assert table.layout == family.layout
    assert set(table.servers) == {0, 2}


def test_what_the_program_has_placed_stays_together() -> None:
    families = [_whole(n, 1, is_fixed=True) for n in (10, 20, 30)]
    families.append(_whole(1000, 0))
    planned = layout_plan.plan(families, {0, 1, 2}, {0, 2})
    assert [each.servers for each in planned] == [(2,), (2,), (2,), (0,)]


def test_what_the_program_has_placed_stays_where_it_is() -> None:
    families = [_whole(100, 0, is_fixed=True), _whole(10, 0)]
    planned = layout_plan.plan(families, {0}, {0, 1})
    assert [each.servers for each in planned] == [(0,), (1,)]


def test_a_new_server_takes_its_share_of_whole_variables() -> None:
    families = [_whole(10, n % 2) for n in range(12)]
    planned = layout_plan.plan(families, {0, 1}, {0, 1, 2})
    held = layout_plan.bytes_per_server(planned, {0, 1, 2})
    assert held == {0: 40, 1: 40, 2: 40}


def test_nothing_moves_without_need() -> None:
    families = [_whole(100, 0), _whole(101, 1), _table(1000, (0, 1))]
    assert layout_plan.plan(families, {0, 1}, {0, 1}) == families


_SERVERS = st.sets(st.integers(0, 5), min_size=1, max_size=5)


@st.composite
def _families(draw: st.DrawFn) -> tuple[list[Family], set[int], set[int]]:
    before, after = draw(_SERVERS), draw(_SERVERS)
    families = []
    for _ in range(draw(st.integers(0, 8))):
        servers = tuple(
            draw(
                st.lists(
                    st.sampled_from(sorted(before)), min_size=1, max_size=6
                )
            )
        )
        if draw(st.booleans()):
            rows = draw(st.integers(len(servers), 50))
            families.append(_table(rows, servers))
        else:
            families.append(
                _whole(
                    draw(st.integers(0, 1000)),
                    servers[0],
                    is_fixed=draw(st.booleans()),
                )
            )
    return families, before, after


@hypothesis.given(_families())
@hypothesis.settings(deadline=None)
def test_every_row_has_one_place_that_there_is(
    case: tuple[list[Family], set[int], set[int]],
) -> None:
    families, before, after = case
    planned = layout_plan.plan(families, before, after)
    assert len(planned) == len(families)
    for old, new in zip(families, planned, strict=True):
        assert new.layout.num_rows == old.layout.num_rows
        assert len(new.servers) == new.layout.num_shards
        assert set(new.servers) <= after
        assert min(map(len, map(new.layout.rows, range(new.layout.num_shards))))
        same = dataclasses.replace(new, layout=old.layout, servers=old.servers)
        assert same == old
        if old.is_fixed and old.servers[0] in after:
            assert new == old

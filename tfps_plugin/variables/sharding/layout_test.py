from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables.sharding.layout import RowLayout

_layouts = st.integers(1, 200).flatmap(
    lambda rows: st.integers(1, rows).map(
        lambda shards: RowLayout.even(rows, shards)
    )
)


@given(_layouts)
def test_every_row_is_in_exactly_one_shard(layout: RowLayout) -> None:
    rows = [r for s in range(layout.num_shards) for r in layout.rows(s)]
    assert rows == list(range(layout.num_rows))


@given(_layouts)
def test_sizes_differ_by_at_most_one_and_the_first_are_larger(
    layout: RowLayout,
) -> None:
    sizes = [len(layout.rows(s)) for s in range(layout.num_shards)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(_layouts, st.data())
def test_overlaps_cover_a_range_in_order(
    layout: RowLayout, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, layout.num_rows))
    stop = data.draw(st.integers(start, layout.num_rows))
    covered = [
        layout.offsets[shard] + local
        for shard, local_rows in layout.overlaps(start, stop)
        for local in local_rows
    ]
    assert covered == list(range(start, stop))

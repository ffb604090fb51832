"""Tests of the rows of hash buckets."""

import math

import pytest

from tfps_plugin.variables.dynamic.row_space import NUM_BUCKETS
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.sharding.layout import RowLayout


@pytest.mark.parametrize("capacity", [1, 1000, 1_000_000, 20_000_000])
def test_there_is_room_for_the_capacity(capacity: int) -> None:
    space = RowSpace.for_capacity(capacity)
    room = space.num_rows - NUM_BUCKETS * RowSpace.RESERVED
    assert room >= capacity


@pytest.mark.parametrize(
    "capacity", [1, 2, 5, 8, 20, 64, 300, 1000, 10_000, 1_000_000, 20_000_000]
)
def test_no_bucket_is_full_before_the_table(capacity: int) -> None:
    (rows,) = RowSpace.for_capacity(capacity).rows_per_cell
    mean, room = capacity / NUM_BUCKETS, rows - RowSpace.RESERVED
    if room >= capacity:
        return
    # The tail of Poisson's distribution, by its terms.
    chance, count = 0.0, room + 1
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    while term > chance * 1e-12:
        chance += term
        count += 1
        term *= mean / count
    assert 0.0 < NUM_BUCKETS * chance < 1 / 16_000_000


def test_a_large_table_has_few_rows_to_spare() -> None:
    space = RowSpace.for_capacity(1_000_000)
    assert space.num_rows < 1_060_000


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 64])
def test_shards_of_whole_blocks_have_every_bucket_once(num_shards: int) -> None:
    space = RowSpace.for_capacity(1000)
    layout = RowLayout.even(space.num_rows, num_shards, space.rows_per_bucket)
    found = [
        bucket
        for shard in range(num_shards)
        for bucket in space.buckets(layout.rows(shard))
    ]
    assert found == list(range(NUM_BUCKETS))


def test_a_cut_bucket_is_refused() -> None:
    space = RowSpace((10,))
    with pytest.raises(ValueError, match="whole buckets of 10 rows"):
        space.buckets(range(0, 15))

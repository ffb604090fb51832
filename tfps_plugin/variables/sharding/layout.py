"""Rows of each shard of a table. Pure: no TensorFlow."""

import dataclasses
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class RowLayout:
    """Contiguous row ranges, one per shard, in order.

    Attributes:
        offsets: First row of every shard, and the number of rows at the end:
            shard `s` holds the rows `offsets[s] <= row < offsets[s + 1]`.
    """

    offsets: tuple[int, ...]

    @classmethod
    def even(
        cls, num_rows: int, num_shards: int, rows_per_block: int = 1
    ) -> "RowLayout":
        """Cuts `num_rows` so that shard sizes differ by at most one block.

        The first shards take the blocks left over, as TensorFlow's do.

        Args:
            num_rows: Number of rows, a multiple of `rows_per_block`.
            num_shards: Number of shards.
            rows_per_block: Rows that stay together, one after the other.
        """
        blocks, left_over = divmod(num_rows // rows_per_block, num_shards)
        offsets = [0]
        for shard in range(num_shards):
            offsets.append(
                offsets[-1] + (blocks + (shard < left_over)) * rows_per_block
            )
        return cls(tuple(offsets))

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.offsets) - 1

    @property
    def num_rows(self) -> int:
        """Number of rows of the whole table."""
        return self.offsets[-1]

    def rows(self, shard: int) -> range:
        """Returns the rows that `shard` holds."""
        return range(self.offsets[shard], self.offsets[shard + 1])

    def overlaps(self, start: int, stop: int) -> Iterator[tuple[int, range]]:
        """Yields the parts of `start <= row < stop`, shard by shard.

        Yields:
            `(shard, local_rows)` for every shard with rows in the range;
            `local_rows` counts from the shard's own first row.
        """
        for shard in range(self.num_shards):
            first = max(start, self.offsets[shard])
            last = min(stop, self.offsets[shard + 1])
            if first < last:
                offset = self.offsets[shard]
                yield shard, range(first - offset, last - offset)

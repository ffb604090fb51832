"""Rows of a dynamic table, by hash bucket. Pure: no TensorFlow.

An id belongs to one of a fixed number of hash buckets, and every bucket has
the same number of consecutive rows. Shards hold whole buckets. So the rows of
a table may be cut anew, moved, saved and restored as those of any table, and
every id is still found where its bucket is.

Several tables may be stacked, as one variable. A bucket then has a cell for
each of them: the rows that the bucket has if the table is alone.
"""

import dataclasses
import itertools
import math

import numpy as np

NUM_BUCKETS = 64

# A bucket with more ids than the mean, six standard deviations and six is as
# good as never seen: in one table of 16 million. The counts of small tables,
# which are Poisson's, are far from normal.
_DEVIATIONS = 6.0
_MORE_ROWS = 6


@dataclasses.dataclass(frozen=True)
class RowSpace:
    """Rows of all buckets.

    The first rows of a cell are reserved: one that stands for ids without a
    row, one that no step changes, and one for each of the ids that cannot be
    keys of a hash table.

    Attributes:
        rows_per_cell: For each table, the rows of its cell in each bucket,
            including reserved ones.
    """

    rows_per_cell: tuple[int, ...]

    # Row that stands for ids without one. Its gradients are zero.
    ABSENT = 0
    # Row that nothing changes: its slots have their initial values.
    PRISTINE = 1
    # First row of the lowest ids of int64, in their order.
    LOWEST = 2
    # Number of the lowest ids, which have fixed rows.
    NUM_LOWEST = 3
    # Number of reserved rows of a cell.
    RESERVED = LOWEST + NUM_LOWEST

    @classmethod
    def for_capacity(cls, *capacities: int) -> "RowSpace":
        """Returns a space in which a number of ids find room.

        Ids spread over the buckets at random, so each has some rows to spare.

        Args:
            *capacities: The number of ids of each table.
        """

        def rows_for(capacity: int) -> int:
            mean = capacity / NUM_BUCKETS
            most = math.ceil(mean + _DEVIATIONS * math.sqrt(mean)) + _MORE_ROWS
            return min(most, capacity) + cls.RESERVED

        return cls(tuple(map(rows_for, capacities)))

    @property
    def num_tables(self) -> int:
        """Number of tables."""
        return len(self.rows_per_cell)

    @property
    def rows_per_bucket(self) -> int:
        """Rows of each bucket, those of all tables."""
        return sum(self.rows_per_cell)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first row of each table in a bucket."""
        return tuple(itertools.accumulate(self.rows_per_cell[:-1], initial=0))

    @property
    def num_rows(self) -> int:
        """Number of rows of all tables."""
        return NUM_BUCKETS * self.rows_per_bucket

    def cells_of(self, table: int, rows: range) -> list[range]:
        """Returns the rows of a table among some, in ranges.

        Args:
            table: The number of the table.
            rows: Rows of whole buckets.
        """
        if self.num_tables == 1:
            return [rows]
        first, size = self.offsets[table], self.rows_per_cell[table]
        return [
            range(start + first, start + first + size)
            for start in rows[:: self.rows_per_bucket]
        ]

    def tables_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the number of the table of each of some rows."""
        ends = np.cumsum(self.rows_per_cell)
        tables: np.ndarray = np.searchsorted(
            ends, rows % self.rows_per_bucket, side="right"
        )
        return tables

    def buckets(self, rows: range) -> range:
        """Returns the buckets that whole rows belong to.

        Args:
            rows: The rows of a shard.

        Raises:
            ValueError: If a bucket is cut.
        """
        if rows.start % self.rows_per_bucket or rows.stop % (
            self.rows_per_bucket
        ):
            raise ValueError(
                "A shard of a dynamic table must have whole buckets of "
                f"{self.rows_per_bucket} rows. Received: rows={rows}"
            )
        return range(
            rows.start // self.rows_per_bucket,
            rows.stop // self.rows_per_bucket,
        )

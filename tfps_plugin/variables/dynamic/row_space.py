"""Rows of a dynamic table, by hash bucket. Pure: no TensorFlow.

An id belongs to one of a fixed number of hash buckets, and every bucket has
the same number of consecutive rows. Shards hold whole buckets. So the rows of
a table may be cut anew, moved, saved and restored as those of any table, and
every id is still found where its bucket is.
"""

import dataclasses
import math

NUM_BUCKETS = 64

# A bucket with as many ids as the mean and six standard deviations is as good
# as never seen: one in a billion.
_DEVIATIONS = 6.0


@dataclasses.dataclass(frozen=True)
class RowSpace:
    """Rows of all buckets.

    The first rows of a bucket are reserved: one that stands for ids without a
    row, one that no step changes, and one for each of the ids that cannot be
    keys of a hash table.

    Attributes:
        rows_per_bucket: Rows of each bucket, including reserved ones.
    """

    rows_per_bucket: int

    # Row that stands for ids without one. Its gradients are zero.
    ABSENT = 0
    # Row that nothing changes: its slots have their initial values.
    PRISTINE = 1
    # First row of the lowest ids of int64, in their order.
    LOWEST = 2
    # Number of the lowest ids, which have fixed rows.
    NUM_LOWEST = 3
    # Number of reserved rows of a bucket.
    RESERVED = LOWEST + NUM_LOWEST

    @classmethod
    def for_capacity(cls, capacity: int) -> "RowSpace":
        """Returns a space in which a number of ids find room.

        Ids spread over the buckets at random, so each has some rows to spare.

        Args:
            capacity: The number of ids.
        """
        mean = capacity / NUM_BUCKETS
        spare = _DEVIATIONS * math.sqrt(mean)
        return cls(math.ceil(mean + spare) + cls.RESERVED)

    @property
    def num_rows(self) -> int:
        """Number of rows of the whole table."""
        return NUM_BUCKETS * self.rows_per_bucket

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

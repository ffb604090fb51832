"""Answers of the directory of a shard, and who asks."""

import dataclasses
import enum

import tensorflow as tf


class Asker(enum.Enum):
    """A caller that asks for the rows of ids."""

    # Makes none.
    READER = enum.auto()
    # A step that trains: ids without rows get some, as far as the rules allow.
    STEP = enum.auto()
    # The program gives ids rows, whatever the rules say, and no other id loses
    # its own. Without room, it is an error.
    IMPORT = enum.auto()


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """Rows of ids.

    Attributes:
        rows_N: Row numbers of the shard, int32. Ids without a row have that
            of `RowSpace.ABSENT` in the first bucket of the shard.
        are_present_N: Whether each id has a row.
    """

    rows_N: tf.Tensor
    are_present_N: tf.Tensor

    @property
    def tensors(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The arguments by which it is made again."""
        return self.rows_N, self.are_present_N

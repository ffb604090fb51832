"""What a checkpoint is, and what each kind of checkpoint has to answer."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any
from typing import Protocol

# "epoch-12": what ModelCheckpoint's `{epoch}` and tf.train.CheckpointManager
# write at the end of a name.
_NUMBER = re.compile(r"-(\d+)$")


@dataclasses.dataclass(frozen=True, order=True)
class Stamp:
    """Tells one content of a file from the next; a later one is larger.

    Attributes:
        modified_ns: When the file was last written to.
        num_bytes: Its size.
        inode: Which file of the disk it is; 0 where that means nothing.
    """

    modified_ns: int
    num_bytes: int
    inode: int = 0


class CheckpointKind(Protocol):
    """One way to write checkpoints: how such are found and loaded.

    Attributes:
        pattern: What their names look like, for people.
    """

    pattern: str

    def find(self, listing: Iterable[tuple[str, Stamp]]) -> "list[Checkpoint]":
        """The checkpoints of this kind.

        Args:
            listing: Path and stamp of every file of the folder.
        """

    def load(self, checkpoint: "Checkpoint", model: Any) -> int | None:
        """Gives a model all weights of a checkpoint.

        It must not lock or change any file: the training writes them.

        Args:
            checkpoint: What `find` has found. It may be gone by now, or not
                be complete yet.
            model: A built `keras.Model`. After an error its weights are
                anything.

        Returns:
            The optimizer's steps up to the checkpoint, None if it does not
            say.

        Raises:
            Exception: Whatever follows from a file that is gone, incomplete
                or of another model. Never is a weight left out silently.
        """


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One state of the training on disk.

    Two with one path are two if the file was written again in between.

    Attributes:
        path: What the user knows it by: a file, or the prefix of several.
        name: The last part of the path, without the kind's ending.
        file: The file that is written last.
        stamp: What `file` was when the checkpoint was found.
        kind: How it is loaded.
    """

    path: str
    name: str
    file: str
    stamp: Stamp
    kind: CheckpointKind = dataclasses.field(compare=False, repr=False)

    @property
    def number(self) -> int | None:
        """The number at the end of the name: 12 of "epoch-12"."""
        match = _NUMBER.search(self.name)
        return int(match[1]) if match else None

    @property
    def rank(self) -> tuple[int, int, str]:
        """What orders checkpoints by age; the youngest has the largest.

        Of those written within one tick of the disk's clock, the number of
        the name decides.
        """
        number = -1 if self.number is None else self.number
        return self.stamp.modified_ns, number, self.path

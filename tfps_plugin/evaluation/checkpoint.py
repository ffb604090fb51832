"""Checkpoint on disk, and the protocol that each kind of checkpoint has."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any
from typing import Protocol

# ModelCheckpoint's `{epoch}` and tf.train.CheckpointManager end names with a
# number, as in "epoch-12".
_NUMBER = re.compile(r"-(\d+)$")


@dataclasses.dataclass(frozen=True, order=True)
class Stamp:
    """State of a file, to detect changes; a later state is larger.

    Attributes:
        modified_ns: Time of the last write, in nanoseconds since the epoch.
        num_bytes: Size of the file in bytes.
        inode: Number of the file on its disk; 0 on remote storage.
    """

    modified_ns: int
    num_bytes: int
    inode: int = 0


class CheckpointKind(Protocol):
    """One format of checkpoints: finds and loads them.

    Attributes:
        pattern: Pattern of their names, for messages.
    """

    pattern: str

    def find(self, listing: Iterable[tuple[str, Stamp]]) -> "list[Checkpoint]":
        """Returns the checkpoints of this kind.

        Args:
            listing: Path and stamp of every file in the folder.
        """

    def load(self, checkpoint: "Checkpoint", model: Any) -> int | None:
        """Assigns all weights of a checkpoint to a model.

        Must not lock or change any file, because the training writes them.

        Args:
            checkpoint: A checkpoint from `find`. It may be gone by now, or
                still incomplete.
            model: A built `keras.Model`. After an error its weights are
                undefined.

        Returns:
            The optimizer's step count; None if the checkpoint lacks it.

        Raises:
            Exception: If a file is gone or incomplete, or belongs to another
                model. No weight is ever left out silently.
        """


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One state of the training on disk.

    If a file was written again, old and new state are different checkpoints.

    Attributes:
        path: Path for users: a file, or the prefix of several files.
        name: Last part of the path, without the extension.
        file: The file that is written last.
        stamp: State of `file` when the checkpoint was found.
        kind: The format, which loads it.
    """

    path: str
    name: str
    file: str
    stamp: Stamp
    kind: CheckpointKind = dataclasses.field(compare=False, repr=False)

    @property
    def number(self) -> int | None:
        """The number at the end of the name: 12 for "epoch-12"."""
        match = _NUMBER.search(self.name)
        return int(match[1]) if match else None

    @property
    def rank(self) -> tuple[int, int, str]:
        """Sort key by age; the newest checkpoint has the largest.

        The number in the name decides between checkpoints of the same time.
        """
        number = -1 if self.number is None else self.number
        return self.stamp.modified_ns, number, self.path

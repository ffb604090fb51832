"""Copy of one variable or shard, on another parameter server."""

import weakref
from typing import Any

import tensorflow as tf

from tfps_plugin.recovery import transfers
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable


class VariableCopy:
    """Copy of one variable or shard.

    Attributes:
        variable: Weak reference to the original.
        mirror: The copy, on another ps.
        incarnation: Incarnation of that ps when the copy was created.
        mark: Mark of the rows at the last update; None if nothing is known.
        handle: Handle of the original at the last update; None before it.
    """

    def __init__(
        self, variable: RemoteVariable, device: str, incarnation: int
    ) -> None:
        """Makes the copy, without a value yet.

        Args:
            variable: The original.
            device: Device of the other ps.
            incarnation: Incarnation of that ps.
        """
        self.variable = weakref.ref(variable)
        self.incarnation = incarnation
        self._device = device
        self.begin()

    def begin(self) -> None:
        """Makes the copy anew, without a value."""
        variable = self.variable()
        if variable is None:
            raise _replaced("a variable that is gone")
        self.mark: Mark | None = None
        self.handle: Any = None
        self.mirror = RemoteVariable(
            self._device,
            variable.shape,
            variable.dtype,
            f"standby/{variable.path}",
            trainable=False,
        )
        if variable.on_disk is not None:
            # The next ps has no more memory for the table than this one.
            self.mirror.on_disk = variable.on_disk.like()

    @property
    def part(self) -> Part:
        """The original, as a part of itself.

        Raises:
            tf.errors.AbortedError: If it is gone.
        """
        variable = self.variable()
        if variable is None:
            raise _replaced("a variable that is gone")
        return part_of(variable)

    def is_of(self, handle: Any) -> bool:
        """Returns whether it has the rows of an original, and a mark."""
        return self.handle is handle and self.mark is not None

    def update(self, device: str, handle: Any) -> None:
        """Copies what has changed since the last update.

        Args:
            device: Device of the original.
            handle: Handle of the original.

        Raises:
            tf.errors.OpError: If a ps does not answer, or was replaced.
        """
        part = self.part
        if not _is_by_rows(part):
            value = transfers.read(part.variable)
            require_same(part, handle)
            transfers.assign(self.mirror, value)
        elif self.is_of(handle) and self.mark is not None:
            rows, mark = change_files.changed_rows(device, part, self.mark)
            require_same(part, handle)
            # After a failure halfway, it is unknown which rows were copied.
            self.mark = None
            transfers.write_rows(part, handle, rows, self.mirror)
            self.mark = mark
        else:
            # Marked before copying: later changes are copied by the next
            # update.
            mark = change_files.take_mark(device, part)
            require_same(part, handle)
            self.handle = self.mark = None
            transfers.copy_rows(part.variable, self.mirror)
            self.mark = mark
        self.handle = handle

    def restore(self, device: str) -> None:
        """Assigns the copy to the original, which was made again.

        Args:
            device: Device of the original.
        """
        part = self.part
        if _is_by_rows(part):
            transfers.copy_rows(self.mirror, part.variable)
            self.mark = change_files.take_mark(device, part)
        else:
            transfers.assign(part.variable, transfers.read(self.mirror))
        self.handle = part.variable.own_handle


def part_of(variable: RemoteVariable) -> Part:
    """Returns a variable or shard as a part of itself."""
    shape = tuple(variable.shape.as_list())
    return Part(variable.path, variable, 0, shape)


def _is_by_rows(part: Part) -> bool:
    # One that is on disk would leave it if it were assigned a whole value.
    return row_marks.is_table(part) or part.variable.on_disk is not None


def require_same(part: Part, handle: Any) -> None:
    """Checks that a variable is the one that was to be read.

    Raises:
        tf.errors.AbortedError: If its parameter server was replaced.
    """
    if part.variable.own_handle is not handle:
        raise _replaced(part.key)


def _replaced(name: str) -> tf.errors.AbortedError:
    return tf.errors.AbortedError(
        None, None, f"The parameter server of {name} was replaced."
    )

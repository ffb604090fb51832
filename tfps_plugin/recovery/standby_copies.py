"""A second copy of every shard, on the next parameter server."""

import threading
import weakref
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.row_marks import Mark
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.saving import saved_form

_CHIEF = "/device:CPU:0"


class _Copy:
    """The copy of one variable or shard.

    Attributes:
        variable: Whose copy it is.
        mirror: The copy, on another ps.
        incarnation: Of that ps, when the copy was made.
        mark: Of the rows that were copied last; None: it is no table.
        handle: The variable's own when it was copied last; None: it was not.
    """

    def __init__(
        self, variable: RemoteVariable, device: str, incarnation: int
    ) -> None:
        self.variable = weakref.ref(variable)
        self.mirror = RemoteVariable(
            device,
            variable.shape,
            variable.dtype,
            f"standby/{variable.path}",
            trainable=False,
        )
        self.incarnation = incarnation
        self.mark: Mark | None = None
        self.handle: Any = None


class StandbyCopies:
    """Copies what parameter servers hold to one another.

    Rows travel by way of the chief, in slices; of a table only those that have
    changed. Training goes on meanwhile: a row is copied as it is at that
    moment.

    Threading: safe from several threads. Guarded by `_lock`: the copies, while
    they are made and used.
    """

    def __init__(self, strategy: Any) -> None:
        """Begins without copies.

        Args:
            strategy: A `tfps.ParameterServerStrategy` with two ps or more.
        """
        self._strategy = weakref.ref(strategy)
        self._lock = threading.Lock()
        self._copies: dict[int, _Copy] = {}

    def update(self) -> None:
        """Copies what has changed since the last time.

        To be begun while no ps is being brought back.

        Raises:
            tf.errors.OpError: If a ps does not answer, or was replaced.
        """
        with self._lock:
            self._forget_gone()
            strategy = self._strategy()
            if strategy is None:
                return
            variables = strategy.inventory.on(strategy.ps_devices)
            # What has another handle when it was read is not what was copied
            # so far: its ps was replaced meanwhile.
            handles = {id(each): each.own_handle for each in variables}
            copies = {
                id(each): self._copy_of(strategy, each) for each in variables
            }

            def update(device: str, own: Sequence[Part]) -> None:
                for part in own:
                    key = id(part.variable)
                    _update(device, part, copies[key], handles[key])

            part_files.on_every_device(
                [_part(each) for each in variables], update
            )

    def parts(self) -> list[Part]:
        """Of what there is a copy, on a ps that was not lost since."""
        with self._lock:
            return [_part(variable) for variable, _ in self._usable()]

    def restore_parts(self, parts: Sequence[Part]) -> str:
        """Gives variables the values of their copies.

        Args:
            parts: Some of `parts()`.

        Returns:
            Where they came from, for people.

        Raises:
            tf.errors.OpError: If a ps does not answer.
        """
        with self._lock:
            copies = {id(variable): copy for variable, copy in self._usable()}

            def restore(device: str, own: Sequence[Part]) -> None:
                for part in own:
                    _restore(device, part, copies[id(part.variable)])

            part_files.on_every_device(parts, restore)
        return "the standby copies on other parameter servers"

    def _copy_of(self, strategy: Any, variable: RemoteVariable) -> _Copy:
        session = strategy.session
        tasks = session.cluster.parameter_servers
        devices = [session.device(task) for task in tasks]
        next_one = (devices.index(variable.device) + 1) % len(devices)
        incarnation = session.incarnation(tasks[next_one])
        copy = self._copies.get(id(variable))
        if copy is None or copy.incarnation != incarnation:
            copy = _Copy(variable, devices[next_one], incarnation)
            self._copies[id(variable)] = copy
        return copy

    def _usable(self) -> Iterator[tuple[RemoteVariable, _Copy]]:
        strategy = self._strategy()
        if strategy is None:
            return
        incarnations = {
            strategy.session.device(task): strategy.session.incarnation(task)
            for task in strategy.session.cluster.parameter_servers
        }
        for copy in self._copies.values():
            variable = copy.variable()
            if variable is None or copy.handle is None:
                continue
            if copy.incarnation == incarnations[copy.mirror.device]:
                yield variable, copy

    def _forget_gone(self) -> None:
        self._copies = {
            key: copy
            for key, copy in self._copies.items()
            if copy.variable() is not None
        }


def _part(variable: RemoteVariable) -> Part:
    shape = tuple(variable.shape.as_list())
    return Part(variable.path, variable, 0, shape)


def _update(device: str, part: Part, copy: _Copy, handle: Any) -> None:
    """Brings a copy up to date."""
    if not row_marks.is_table(part):
        value = _value_of(part.variable)
        _require_same(part, handle)
        _assign(copy.mirror, value)
    elif copy.handle is handle and copy.mark is not None:
        rows, values, mark = change_files.take_changes(device, part, copy.mark)
        _require_same(part, handle)
        # If it ends halfway, nobody knows which rows were copied.
        copy.mark = None
        for first in range(0, int(rows.shape[0]), _rows_of_slice(part)):
            last = first + _rows_of_slice(part)
            with tf.device(device):
                some = rows[first:last], values[first:last]
            _scatter(copy.mirror, *some)
        copy.mark = mark
    else:
        # Marked first: what changes meanwhile is copied again.
        mark = change_files.take_mark(device, part)
        _require_same(part, handle)
        copy.handle = copy.mark = None
        _transfer_rows(part.variable, copy.mirror)
        copy.mark = mark
    copy.handle = handle


def _restore(device: str, part: Part, copy: _Copy) -> None:
    """Gives a variable that was made again the value of its copy."""
    if row_marks.is_table(part):
        _transfer_rows(copy.mirror, part.variable)
        copy.mark = change_files.take_mark(device, part)
    else:
        _assign(part.variable, _value_of(copy.mirror))
    copy.handle = part.variable.own_handle


def _require_same(part: Part, handle: Any) -> None:
    if part.variable.own_handle is not handle:
        raise tf.errors.AbortedError(
            None, None, f"The parameter server of {part.key} was replaced."
        )


def _value_of(variable: RemoteVariable) -> tf.Tensor:
    """All of it, on the chief."""
    with tf.device(variable.device):
        value = compat.read_resource(variable.own_handle, variable.dtype)
    with tf.device(_CHIEF):
        return tf.identity(value)


def _assign(target: RemoteVariable, value: tf.Tensor) -> None:
    with tf.device(target.device):
        tf.raw_ops.AssignVariableOp(
            resource=target.own_handle, value=tf.identity(value)
        )


def _transfer_rows(source: RemoteVariable, target: RemoteVariable) -> None:
    """Gives a table the rows of another one, on another ps."""
    with tf.device(target.device):
        tf.raw_ops.AssignVariableOp(
            resource=target.own_handle,
            value=tf.zeros(target.shape, target.dtype),
        )
    for rows in saved_form.pieces(source, SLICE_BYTES):
        with tf.device(source.device):
            numbers = tf.range(rows.start, rows.stop, dtype=tf.int64)
            # Reading the variable would copy all of it.
            values = tf.raw_ops.ResourceGather(
                resource=source.own_handle, indices=numbers, dtype=source.dtype
            )
        _scatter(target, numbers, values)


def _scatter(
    target: RemoteVariable, rows: tf.Tensor, values: tf.Tensor
) -> None:
    with tf.device(_CHIEF):
        rows, values = tf.identity(rows), tf.identity(values)
    with tf.device(target.device):
        tf.raw_ops.ResourceScatterUpdate(
            resource=target.own_handle, indices=rows, updates=values
        )


def _rows_of_slice(part: Part) -> int:
    return max(1, SLICE_BYTES // part.row_bytes)

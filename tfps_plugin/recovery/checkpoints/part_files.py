"""Writes parts of variables to checkpoint files, and reads them back.

Where the parameter servers see the chief's files, each writes and reads its
own, all at the same time, and no row passes through the chief. Where they do
not, rows come to the chief in slices, one after the other.
"""

import concurrent.futures
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps_plugin._compat import tensorflow_execution
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin._compat.tensorflow_checkpoints import VARIABLE_VALUE_KEY
from tfps_plugin.recovery.checkpoints import parts as parts_module
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.row_marks import Mark

_CHIEF = "/device:CPU:0"

T = TypeVar("T")


class WholeParts:
    """What parts hold at one moment, kept by those who hold them.

    While it exists, a ps holds its part of the variables twice, as far as
    they change.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        """Copies all parts, every ps its own at the same time.

        Args:
            parts: What to copy; nothing may change it meanwhile.
        """
        self._parts = parts
        self._values = on_every_device(parts, _read_all)

    def marks(self) -> dict[tuple[str, int], Mark]:
        """The marks of those that are of tables."""

        def mark(device: str, parts: Sequence[Part]) -> dict[Any, Mark]:
            values = dict(self._values[device])
            with tf.device(device):
                return {
                    (part.key, part.offset): row_marks.take(part, values[part])
                    for part in parts
                }

        tables = [part for part in self._parts if row_marks.is_table(part)]
        taken = on_every_device(tables, mark)
        return {
            key: one for marks in taken.values() for key, one in marks.items()
        }

    def write(self, prefix: str, *, by_ps: bool) -> list[str]:
        """Writes it to files.

        Args:
            prefix: What the names of the files begin with.
            by_ps: Whether each ps writes its own; else the chief writes all.

        Returns:
            The prefixes of what was written, to be merged.
        """
        if not by_ps:
            return _write_through_chief(prefix, self._values)
        numbered = {d: f"{prefix}-{i}" for i, d in enumerate(self._values)}

        def write(device: str, parts: Sequence[Part]) -> str:
            del parts
            _save(device, numbered[device], self._values[device])
            return numbered[device]

        return list(on_every_device(self._parts, write).values())


# Parts of one ps, each with its value, on that ps.
_Values = list[tuple[Part, tf.Tensor]]


def _read_all(device: str, parts: Sequence[Part]) -> _Values:
    with tf.device(device):
        return [
            (
                part,
                compat.read_resource(
                    part.variable.own_handle, part.variable.dtype
                ),
            )
            for part in parts
        ]


def _save(device: str, prefix: str, values: _Values) -> None:
    keys, specs, tensors = [], [], []
    with tf.device(device):
        for part, value in values:
            for spec, rows in part.slices(SLICE_BYTES):
                keys.append(part.key)
                specs.append(spec)
                # A slice of whole rows is no copy.
                tensors.append(value[rows.start : rows.stop] if spec else value)
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=keys,
            shape_and_slices=specs,
            tensors=tensors,
        )


def _write_through_chief(prefix: str, values: dict[str, _Values]) -> list[str]:
    prefixes: list[str] = []
    for device, of_device in values.items():
        small: list[tuple[str, str, tf.Tensor]] = []
        for part, value in of_device:
            for spec, rows in part.slices(SLICE_BYTES):
                with tf.device(device):
                    rows_there = (
                        value[rows.start : rows.stop] if spec else value
                    )
                with tf.device(_CHIEF):
                    here = tf.identity(rows_there)
                small.append((part.key, spec, here))
                if spec:
                    # One file for each slice: only one is here at a time.
                    prefixes.append(save_here(prefix, len(prefixes), small))
                    small = []
        if small:
            prefixes.append(save_here(prefix, len(prefixes), small))
    return prefixes


def save_here(
    prefix: str, number: int, entries: Sequence[tuple[str, str, tf.Tensor]]
) -> str:
    """Has the chief write some entries to a file of their own.

    Args:
        prefix: What the names of files begin with.
        number: Which of them it is.
        entries: Key, slice ("": the whole) and value of each.

    Returns:
        The prefix of what was written.
    """
    keys, specs, tensors = zip(*entries, strict=True)
    numbered = f"{prefix}-{number}"
    with tf.device(_CHIEF):
        tf.raw_ops.SaveV2(
            prefix=numbered,
            tensor_names=list(keys),
            shape_and_slices=list(specs),
            tensors=list(tensors),
        )
    return numbered


def restore(parts: Sequence[Part], prefix: str, *, by_ps: bool) -> None:
    """Gives parts the values that a checkpoint has for them.

    Args:
        parts: What to restore.
        prefix: Of the checkpoint.
        by_ps: Whether each ps reads the files itself; else the chief does.

    Raises:
        tf.errors.OpError: If a file cannot be read.
    """

    def restore_all(device: str, own: Sequence[Part]) -> None:
        for part in own:
            if by_ps:
                _restore_there(device, part, prefix)
            else:
                _restore_through_chief(device, part, prefix)

    on_every_device(parts, restore_all)


def _restore_there(device: str, part: Part, prefix: str) -> None:
    ((spec, _),) = part.slices(None)
    with tf.device(device):
        (value,) = tf.raw_ops.RestoreV2(
            prefix=prefix,
            tensor_names=[part.key],
            shape_and_slices=[spec],
            dtypes=[part.variable.dtype],
        )
    _assign(part, value)


def _restore_through_chief(device: str, part: Part, prefix: str) -> None:
    slices = list(part.slices(SLICE_BYTES))
    variable = part.variable
    for spec, rows in slices:
        with tf.device(_CHIEF):
            (value,) = tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=[part.key],
                shape_and_slices=[spec],
                dtypes=[variable.dtype],
            )
        if len(slices) == 1:
            _assign(part, value)
            return
        with tf.device(device):
            if rows.start == 0:
                variable.assign(
                    tf.zeros(variable.shape, variable.dtype), read_value=False
                )
            tf.raw_ops.ResourceScatterUpdate(
                resource=variable.own_handle,
                indices=tf.range(rows.start, rows.stop),
                updates=tf.identity(value),
            )


def _assign(part: Part, value: tf.Tensor) -> None:
    with tf.device(part.variable.device):
        part.variable._restore_from_tensors(
            {VARIABLE_VALUE_KEY: tf.identity(value)}
        )


def on_every_device(
    parts: Sequence[Part], act: Callable[[str, Sequence[Part]], T]
) -> dict[str, T]:
    """Does something with the parts of every ps, with all at the same time.

    Args:
        parts: The parts.
        act: Is given a device and its parts, on a thread of its own.

    Returns:
        What it returned, by device.

    Raises:
        BaseException: What one of them raised, after all have ended.
    """
    grouped = parts_module.by_device(parts)
    if not grouped:
        return {}

    def act_alone(device: str, own: Sequence[Part]) -> T:
        # An executor of its own: calls of threads do not wait for each other.
        executor = tensorflow_execution.new_synchronous_executor()
        with tensorflow_execution.executor_scope(executor):
            try:
                return act(device, own)
            finally:
                tensorflow_execution.forget_error(executor)

    with concurrent.futures.ThreadPoolExecutor(
        max_workers=len(grouped), thread_name_prefix="tfps-checkpoint"
    ) as pool:
        futures = {
            device: pool.submit(act_alone, device, own)
            for device, own in grouped.items()
        }
    return {device: future.result() for device, future in futures.items()}

"""Files of variable parts: writes them for a checkpoint, and reads them back.

If the parameter servers see the chief's files, each writes and reads its own,
all at the same time, and no row passes through the chief. Otherwise the chief
writes and reads everything, slice by slice.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable
from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.graph.tensorflow_checkpoints import VARIABLE_VALUE_KEY
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin._compat.runtime import tensorflow_functions
from tfps_plugin.recovery.checkpoints import parts as parts_module
from tfps_plugin.recovery.checkpoints.parts import SLICE_BYTES
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.storage import allocation
from tfps_plugin.variables.storage import on_disk

_CHIEF = "/device:CPU:0"

T = TypeVar("T")


# The parts of one ps, each with its value, which is on that ps.
Values = list[tuple[Part, tf.Tensor]]


def read(parts: Sequence[Part]) -> dict[str, Values]:
    """Copies the values of parts, on all parameter servers at the same time.

    While the copies exist, a ps holds the variables that change twice.

    Args:
        parts: The parts to copy; nothing may change them meanwhile.

    Returns:
        The values by device, each on the ps of its part.
    """

    def read_all(device: str, own: Sequence[Part]) -> Values:
        with tf.device(device):
            return [(part, _copy(part.variable)) for part in own]

    return on_every_device(parts, read_all)


def _copy(variable: RemoteVariable) -> tf.Tensor:
    """Returns a copy of a variable, on the current device."""
    if variable.on_disk is not None:
        return on_disk.copy(variable, variable.on_disk)
    return compat.read_resource(variable.own_handle, variable.dtype)


def write(values: dict[str, Values], prefix: str, *, by_ps: bool) -> list[str]:
    """Writes values to files; see `Snapshot.write`.

    Args:
        values: The values, from `read`.
        prefix: First part of the names of the files.
        by_ps: Whether each ps writes its own values; if not, the chief
            writes all.

    Returns:
        The prefixes of the written files.
    """
    if not by_ps:
        return _write_through_chief(prefix, values)
    numbered = {d: f"{prefix}-{i}" for i, d in enumerate(values)}

    def write_own(device: str, parts: Sequence[Part]) -> str:
        del parts
        _save(device, numbered[device], values[device])
        return numbered[device]

    parts = [part for of_device in values.values() for part, _ in of_device]
    return list(on_every_device(parts, write_own).values())


def _save(device: str, prefix: str, values: Values) -> None:
    keys, specs, tensors = [], [], []
    with tf.device(device):
        for part, value in values:
            for spec, rows in part.slices(SLICE_BYTES):
                keys.append(part.key)
                specs.append(spec)
                # Slicing whole rows does not copy them.
                tensors.append(value[rows.start : rows.stop] if spec else value)
        # Constants: for what an operation converts itself, TensorFlow makes
        # all threads of the chief wait until the ps has it.
        tf.raw_ops.SaveV2(
            prefix=tf.constant(prefix),
            tensor_names=tf.constant(keys),
            shape_and_slices=tf.constant(specs),
            tensors=tensors,
        )


def _write_through_chief(prefix: str, values: dict[str, Values]) -> list[str]:
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
                    # One file for each slice: the chief holds only one slice.
                    prefixes.append(save_here(prefix, len(prefixes), small))
                    small = []
        if small:
            prefixes.append(save_here(prefix, len(prefixes), small))
    return prefixes


def save_here(
    prefix: str, number: int, entries: Sequence[tuple[str, str, tf.Tensor]]
) -> str:
    """Writes entries to a file of their own, on the chief.

    Args:
        prefix: First part of the names of files.
        number: Number of this file.
        entries: Key, slice specification ("" for a whole tensor) and value of
            each.

    Returns:
        The prefix of the written file.
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
    """Assigns the values of a checkpoint to parts.

    Args:
        parts: The parts to restore.
        prefix: Prefix of the checkpoint.
        by_ps: Whether each ps reads the files itself; if not, the chief does.

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
    if part.variable.on_disk is not None:
        _restore_on_disk(device, part, prefix)
        return
    ((spec, _),) = part.slices(None)
    with tf.device(device):
        # Constants: see `_save`.
        (value,) = tf.raw_ops.RestoreV2(
            prefix=tf.constant(prefix),
            tensor_names=tf.constant([part.key]),
            shape_and_slices=tf.constant([spec]),
            dtypes=[part.variable.dtype],
        )
    _assign(part, value)


def _restore_on_disk(device: str, part: Part, prefix: str) -> None:
    """Restores a variable on the disk of its ps, slice by slice."""
    allocation.allocate(part.variable)
    for spec, rows in part.slices(SLICE_BYTES):
        with tf.device(device):
            (value,) = tf.raw_ops.RestoreV2(
                prefix=tf.constant(prefix),
                tensor_names=tf.constant([part.key]),
                shape_and_slices=tf.constant([spec]),
                dtypes=[part.variable.dtype],
            )
            tf.raw_ops.ResourceScatterUpdate(
                resource=part.variable.own_handle,
                indices=tf.range(rows.start, rows.stop),
                updates=value,
            )


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
        if len(slices) == 1 and variable.on_disk is None:
            _assign(part, value)
            return
        with tf.device(device):
            if rows.start == 0:
                allocation.allocate(variable)
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
    """Calls a function for each parameter server, all at the same time.

    Args:
        parts: The parts to distribute over the calls.
        act: Called with a device and its parts, on a thread of its own.

    Returns:
        The results by device.

    Raises:
        BaseException: What one of the calls raised, after all have ended.
    """
    grouped = parts_module.by_device(parts)
    if not grouped:
        return {}

    # The caller may be the thread that gives up silent tasks, and waits here.
    asks_nobody = tensorflow_functions.asks_nobody()

    def act_alone(device: str, own: Sequence[Part]) -> T:
        # With an executor of its own, a thread does not wait for the others.
        executor = tensorflow_execution.new_synchronous_executor()
        with (
            tensorflow_functions.asking_nobody()
            if asks_nobody
            else contextlib.nullcontext(),
            tensorflow_execution.executor_scope(executor),
        ):
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

"""Fills shards on the parameter servers that hold them, block by block.

The chief never holds a table: it only tells each ps which rows to draw. The
values are those of the whole variable, whatever the number of shards.
"""

import concurrent.futures
import dataclasses
import itertools
import logging
import math
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.variables.initial_values import partitioned_rows
from tfps_plugin.variables.initial_values.partitioned_rows import (
    PartitionedRows,
)
from tfps_plugin.variables.initial_values.random_blocks import RandomBlocks
from tfps_plugin.variables.initial_values.random_blocks import RandomDraw
from tfps_plugin.variables.initial_values.stacked_initializer import (
    StackedInitializer,
)
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.sharding.layout import RowLayout
from tfps_plugin.variables.storage import allocation

_logger = logging.getLogger("tfps_plugin.variables")

# Rows are drawn in blocks of about this size, which bounds what a ps needs
# in addition to the shard itself.
_BLOCK_BYTES = 32 << 20
# Larger values cause a warning if they have to be made in one piece.
_LARGE_BYTES = 256 << 20


@dataclasses.dataclass(frozen=True)
class InitialValue:
    """Description of an initial value that has not been made yet.

    Attributes:
        shape: Full shape of the variable.
        dtype: Dtype of the variable.
        make: Makes the whole value on the current device.
        initializer: The Keras initializer behind `make`, if there is one.
        partitioned: Makes some rows only. None unless the user's initializer
            takes `partition_shape` and `partition_offset`.
    """

    shape: tf.TensorShape
    dtype: tf.DType
    make: Callable[[], tf.Tensor]
    initializer: Any = None
    partitioned: PartitionedRows | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the whole value, in bytes."""
        return num_bytes(self.shape, self.dtype)


def num_bytes(shape: tf.TensorShape, dtype: tf.DType) -> int:
    """Returns the size in bytes; a string counts as 16."""
    item = 16 if dtype == tf.string else dtype.size
    return math.prod(shape.as_list()) * item


def describe(initial_value: Any, dtype: Any, shape: Any) -> InitialValue:
    """Determines shape and dtype of an initial value without making it.

    Args:
        initial_value: The argument of `tf.Variable`: a tensor, an array, or a
            callable without arguments that makes one.
        dtype: The requested dtype, or None.
        shape: The requested shape, or None.

    Returns:
        The description.
    """
    dtype = None if dtype is None else tf.as_dtype(dtype)
    if not callable(initial_value):
        value = tf.convert_to_tensor(initial_value, dtype)
        return InitialValue(value.shape, value.dtype, lambda: value)

    def make() -> tf.Tensor:
        return tf.convert_to_tensor(initial_value(), dtype)

    behind = keras_compat.initializer_behind(initial_value)
    if behind is not None and dtype is not None:
        initializer, full_shape = behind
        return InitialValue(
            tf.TensorShape(full_shape),
            dtype,
            make,
            initializer,
            _partitioned(initializer, tf.TensorShape(full_shape), dtype),
        )
    if shape is not None and dtype is not None:
        shape = tf.TensorShape(shape)
        if shape.is_fully_defined():
            return InitialValue(
                shape,
                dtype,
                make,
                partitioned=partitioned_rows.rows_of(
                    initial_value, initial_value, shape, dtype
                ),
            )
    # Tracing gives shape and dtype and runs nothing.
    traced = tf.function(make).get_concrete_function().structured_outputs
    if traced.shape.is_fully_defined():
        return InitialValue(traced.shape, traced.dtype, make)
    value = make()
    return InitialValue(value.shape, value.dtype, lambda: value)


def _partitioned(
    initializer: Any, shape: tf.TensorShape, dtype: tf.DType
) -> PartitionedRows | None:
    """Returns the rows that a Keras initializer can make in parts."""
    return partitioned_rows.rows_of(
        initializer,
        lambda **part: initializer(
            tuple(shape.as_list()), dtype=dtype.name, **part
        ),
        shape,
        dtype,
    )


def fill(variable: RemoteVariable, initial_value: InitialValue) -> None:
    """Gives a whole variable its value, made on the ps that holds it."""
    if getattr(variable, "on_disk", None) is not None:
        layout = RowLayout((0, initial_value.shape[0]))
        fill_shards([variable], layout, initial_value, variable.path)
        return
    with tf.device(variable.device):
        variable.assign(initial_value.make(), read_value=False)


def fill_shards(
    shards: Sequence[RemoteVariable],
    layout: RowLayout,
    initial_value: InitialValue,
    name: str,
) -> None:
    """Fills every shard; each ps draws its own rows, all ps in parallel.

    Args:
        shards: The shards, without a value.
        layout: Rows of each shard.
        initial_value: Initial value of the whole variable.
        name: Name of the variable, for the log.
    """
    if shards[0].on_disk is not None:
        for shard in shards:
            allocation.allocate(shard)
        if _is_zeros(initial_value.initializer):
            # Otherwise each page of the file would be written.
            return
    make_rows = _row_maker(initial_value, name)
    if make_rows is None:
        _fill_from_whole(shards, layout, initial_value, name)
        return
    row_bytes = initial_value.num_bytes // layout.num_rows
    rows_per_block = max(1, _BLOCK_BYTES // max(1, row_bytes))
    if initial_value.partitioned is not None:
        # As in TensorFlow, the initializer is asked once for each shard.
        rows_per_block = layout.num_rows

    def fill_shard(index: int) -> None:
        _fill_in_blocks(
            shards[index], layout.rows(index), rows_per_block, make_rows
        )

    with concurrent.futures.ThreadPoolExecutor(
        max_workers=len(shards), thread_name_prefix="tfps-initialize"
    ) as pool:
        for done in [pool.submit(fill_shard, i) for i in range(len(shards))]:
            done.result()


def _is_zeros(initializer: Any) -> bool:
    """Returns whether every element, of every table of a stack, is zero."""
    if isinstance(initializer, StackedInitializer):
        return all(map(_is_zeros, initializer.initializers))
    return keras_compat.is_zeros(initializer)


def _row_maker(
    initial_value: InitialValue, name: str
) -> Callable[[int, int], tf.Tensor] | None:
    """Returns a function that makes a block of rows alone, if there is one."""
    if initial_value.partitioned is not None:
        return initial_value.partitioned.rows
    initializer = initial_value.initializer
    if initializer is None:
        return None
    if isinstance(initializer, StackedInitializer):
        return _stack_row_maker(initial_value, initializer, name)
    row_shape = tuple(initial_value.shape.as_list()[1:])
    dtype = initial_value.dtype
    if keras_compat.is_elementwise_constant(initializer):
        # The same number everywhere: a block is made like the whole.
        return lambda start, stop: tf.cast(
            initializer((stop - start, *row_shape), dtype=dtype.name), dtype
        )
    if not dtype.is_floating:
        return None
    draw = keras_compat.random_draw(
        initializer, tuple(initial_value.shape.as_list())
    )
    if draw is None:
        return None
    return RandomBlocks(RandomDraw(*draw), row_shape, dtype).rows


def _stack_row_maker(
    initial_value: InitialValue, initializer: StackedInitializer, name: str
) -> Callable[[int, int], tf.Tensor]:
    """Returns a function that makes rows of a stack, table by table."""
    initializer.require_rows(initial_value.shape.as_list())
    offsets = itertools.accumulate(initializer.rows, initial=0)
    makers = []
    for own, rows in zip(
        initializer.initializers, initializer.rows, strict=True
    ):
        part = _part(initial_value, own, rows)
        makers.append(_row_maker(part, name) or _WholePart(part, name).rows)
    # Parts are consecutive rows, just like shards.
    parts = RowLayout(tuple(offsets))

    def make_rows(start: int, stop: int) -> tf.Tensor:
        made = [
            makers[part](rows.start, rows.stop)
            for part, rows in parts.overlaps(start, stop)
        ]
        return made[0] if len(made) == 1 else tf.concat(made, 0)

    return make_rows


def _part(stack: InitialValue, initializer: Any, rows: int) -> InitialValue:
    shape = tf.TensorShape([rows]).concatenate(stack.shape[1:])
    return InitialValue(
        shape,
        stack.dtype,
        lambda: tf.convert_to_tensor(
            initializer(tuple(shape.as_list()), dtype=stack.dtype.name),
            stack.dtype,
        ),
        initializer,
        _partitioned(initializer, shape, stack.dtype),
    )


class _WholePart:
    """A table of a stack that can only be made in one piece.

    It is made once, on the ps that needs its rows first. A second call might
    make another value.

    Guarantees: all threads get the same value.
    Guarded by `_lock`: `_whole`.
    """

    def __init__(self, initial_value: InitialValue, name: str) -> None:
        self._initial_value = initial_value
        self._name = name
        self._lock = threading.Lock()
        self._whole: tf.Tensor | None = None

    def rows(self, start: int, stop: int) -> tf.Tensor:
        """Returns some rows, on the device that made the table."""
        with self._lock:
            if self._whole is None:
                self._whole = self._initial_value.make()
                _warn_if_large(
                    self._initial_value, self._name, self._whole.device
                )
        with tf.device(self._whole.device):
            return self._whole[start:stop]


def _fill_in_blocks(
    shard: RemoteVariable,
    rows: range,
    rows_per_block: int,
    make_rows: Callable[[int, int], tf.Tensor],
) -> None:
    with tf.device(shard.device):
        if len(rows) <= rows_per_block and shard.on_disk is None:
            shard.assign(make_rows(rows.start, rows.stop), read_value=False)
            return
        if shard.on_disk is None:
            shard.assign(tf.zeros(shard.shape, shard.dtype), read_value=False)
        for start in range(rows.start, rows.stop, rows_per_block):
            stop = min(start + rows_per_block, rows.stop)
            _write(
                shard,
                range(start - rows.start, stop - rows.start),
                make_rows(start, stop),
            )


def _write(shard: RemoteVariable, rows: range, value: tf.Tensor) -> None:
    """Writes consecutive rows, on the current device."""
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=shard.handle,
        begin=[rows.start],
        end=[rows.stop],
        strides=[1],
        value=value,
    )


def _fill_from_whole(
    shards: Sequence[RemoteVariable],
    layout: RowLayout,
    initial_value: InitialValue,
    name: str,
) -> None:
    _warn_if_large(initial_value, name, shards[0].device)
    with tf.device(shards[0].device):
        whole = initial_value.make()
        for index, shard in enumerate(shards):
            rows = layout.rows(index)
            with tf.device(shards[0].device):
                part = whole[rows.start : rows.stop]
            with tf.device(shard.device):
                if shard.on_disk is None:
                    shard.assign(tf.identity(part), read_value=False)
                else:
                    _write(shard, range(len(rows)), tf.identity(part))


def _warn_if_large(initial_value: InitialValue, name: str, device: str) -> None:
    if initial_value.num_bytes >= _LARGE_BYTES:
        _logger.warning(
            "The initial value of %s can only be made in one piece: %d MB on "
            "%s, which then sends the other shards their rows. A constant or "
            "random Keras initializer would be made where it lives.",
            name,
            initial_value.num_bytes >> 20,
            device,
        )

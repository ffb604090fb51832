"""Initializers that are asked for some rows of a variable only.

`tf.distribute.ParameterServerStrategy` calls the initializer of a sharded
variable once for each shard, with `partition_shape` and `partition_offset`.
Initializers that take these two arguments are called like that here, too.
"""

import inspect
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors

_ARGUMENTS = ("partition_shape", "partition_offset")


class PartitionedRows:
    """Rows that an initializer makes part by part.

    An initializer that takes any keyword may still make all rows. It is then
    called once.

    Threading: safe from several threads; one thread at a time calls the
    initializer. Guarded by `_lock`: `_whole`, and the calls.
    """

    def __init__(
        self,
        ask: Callable[..., Any],
        shape: tf.TensorShape,
        dtype: tf.DType,
        *,
        is_sure: bool,
    ) -> None:
        """Prepares the rows; does not call the initializer yet.

        Args:
            ask: Takes `partition_shape` and `partition_offset`, or neither.
            shape: Shape of the whole variable.
            dtype: Dtype of the variable.
            is_sure: Whether the signature of the initializer names both
                arguments. If not, it may refuse them with a TypeError or
                ValueError.
        """
        self._ask = ask
        self._shape = shape
        self._dtype = dtype
        self._is_sure = is_sure
        self._lock = threading.Lock()
        self._whole: tf.Tensor | None = None

    def rows(self, start: int, stop: int) -> tf.Tensor:
        """Makes the rows from `start` up to `stop`, on the current device.

        Raises:
            VariableCreationError: If the initializer returns neither these
                rows nor all of them.
        """
        with self._lock:
            if self._whole is not None:
                return self._whole[start:stop]
            wanted = (stop - start, *self._shape.as_list()[1:])
            value = self._value(wanted, (start, *[0] * (len(wanted) - 1)))
            if value.shape == wanted:
                return value
            if value.shape != self._shape:
                raise errors.VariableCreationError(
                    "An initializer that was asked for a part of a variable "
                    f"must return that part, of shape {wanted}, or the whole "
                    f"variable, of shape {tuple(self._shape)}. Received: a "
                    f"value of shape {tuple(value.shape)} for partition_shape="
                    f"{wanted}. Return a tensor of partition_shape."
                )
            self._whole = value
            return value[start:stop]

    def _value(
        self, shape: tuple[int, ...], offset: tuple[int, ...]
    ) -> tf.Tensor:
        try:
            value = self._ask(partition_shape=shape, partition_offset=offset)
        except (TypeError, ValueError):
            if self._is_sure:
                raise
            value = self._ask()
        return tf.convert_to_tensor(value, self._dtype)


def rows_of(
    initializer: Any,
    ask: Callable[..., Any],
    shape: tf.TensorShape,
    dtype: tf.DType,
) -> PartitionedRows | None:
    """Returns the rows of an initializer that can make them part by part.

    Args:
        initializer: The user's initializer, whose signature is inspected.
        ask: Calls it, with the two arguments or without.
        shape: Shape of the whole variable.
        dtype: Dtype of the variable.

    Returns:
        The rows; None if the initializer makes the whole variable only, and
        for TensorFlow's own: with a seed, they make the same numbers for each
        part.
    """
    if _module_of(initializer).partition(".")[0] == "tensorflow":
        return None
    try:
        parameters = inspect.signature(initializer).parameters
    except (TypeError, ValueError):
        return None
    is_sure = all(name in parameters for name in _ARGUMENTS)
    takes_any = any(
        each.kind is each.VAR_KEYWORD for each in parameters.values()
    )
    if not is_sure and not takes_any:
        return None
    return PartitionedRows(ask, shape, dtype, is_sure=is_sure)


def _module_of(initializer: Any) -> str:
    while hasattr(initializer, "func"):  # functools.partial
        initializer = initializer.func
    if not inspect.isroutine(initializer):
        initializer = type(initializer)
    return getattr(initializer, "__module__", None) or ""

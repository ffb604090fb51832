"""Lower precision for values between workers and parameter servers.

A variable may have a `wire_dtype`. The values that a training step reads, and
the gradients that it sends, are rounded to that dtype on the way. The variable,
its slots and all computations keep theirs. Reads outside of gradient tapes
(evaluate, predict), reads, saves and assignments by the chief, and a SavedModel
are not rounded.

Rows of tables and of other matrices may travel as int8; see `quantization`. A
worker adds the rounding error of a dense gradient to the next one
(`error_feedback`). Sparse gradients are rounded stochastically: their errors
would take as much memory as the table.
"""

import contextlib
from collections.abc import Callable
from typing import Any
from typing import TypeAlias

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_strategy
from tfps_plugin.variables.compression import quantization
from tfps_plugin.variables.step_trace import StepTrace

# Wider dtypes save nothing, and narrower ones lose what is learned.
DTYPES = (tf.bfloat16, tf.float16, tf.int8)
# For shorter rows, the scale would cost most of what is saved.
_LEAST_WIDTH = 8
# One dtype for all variables, or a function from a variable's path to its dtype
# or None.
WireDtype: TypeAlias = str | tf.DType | Callable[[str], Any] | None
# Part of the names of operations, by which rounded reads are recognized.
_RECEIVED = "tfps_received"


def chooser(wire_dtype: WireDtype) -> Callable[[str], tf.DType | None]:
    """Returns a function that chooses the dtype of each variable on the way.

    Returns:
        A function from the path of a variable to its dtype on the way, or to
        None for its own. It raises a ValueError if a callable `wire_dtype`
        returns anything else.

    Raises:
        ValueError: If `wire_dtype` is neither a supported dtype nor callable.
    """
    # NumPy's dtypes are callable.
    if not callable(wire_dtype) or isinstance(wire_dtype, type):
        known = _known(wire_dtype)
        return lambda path: known
    choose: Callable[[str], Any] = wire_dtype
    return lambda path: _known(choose(path), f" for the variable {path!r}")


def _known(wire_dtype: Any, of: str = "") -> tf.DType | None:
    if wire_dtype is None:
        return None
    with contextlib.suppress(TypeError):
        dtype = tf.as_dtype(wire_dtype)
        if dtype in DTYPES:
            return dtype
    names = ", ".join(repr(dtype.name) for dtype in DTYPES)
    raise ValueError(
        f"wire_dtype{of} must be one of {names}, or None for values as they "
        "are; or a callable that gives one of these for the path of a "
        f"variable. Received: wire_dtype={wire_dtype!r}"
    )


def dtype_for(variable: Any) -> tf.DType | None:
    """Returns the dtype of a variable's values on the way in a traced step.

    Returns:
        A narrower dtype; None if the values travel as they are.
    """
    dtype: tf.DType | None = variable.wire_dtype
    if (
        dtype is None
        or not variable.dtype.is_floating
        or dtype.size >= variable.dtype.size
        or (dtype == tf.int8 and not _has_rows(variable))
        or compat.function_graph() is None
        or tensorflow_saving.is_saving_model()
        or StepTrace.current().stays(variable)
    ):
        return None
    return dtype


def _has_rows(variable: Any) -> bool:
    """Returns whether a variable has rows that are worth a scale each."""
    shape = variable.shape
    return shape.rank == 2 and shape[1] >= _LEAST_WIDTH


def dtype_of_reads(variable: Any) -> tf.DType | None:
    """Returns the dtype of reads of a variable on the way; see `dtype_for`.

    Returns:
        None also where no gradient tape records: users want all digits of the
        values themselves.
    """
    return dtype_for(variable) if compat.is_recording() else None


def narrowed(
    value: tf.Tensor, wire_dtype: tf.DType | None, *, stochastic: bool = False
) -> tf.Tensor:
    """Rounds a value to its dtype on the way, on the sender's device.

    Args:
        value: The value.
        wire_dtype: The dtype; None leaves the value as it is.
        stochastic: Whether to round to int8 stochastically: for gradients.

    Returns:
        The value as it travels; see `widened`.
    """
    if wire_dtype is None:
        return value
    if wire_dtype == tf.int8:
        return quantization.quantize(value, stochastic=stochastic)
    return tf.cast(value, wire_dtype)


def width_of(variable: Any) -> int | None:
    """Returns the numbers in a row of a variable; None if it is a scalar."""
    return variable.shape[-1] if variable.shape.rank else None


def widened(value: tf.Tensor, dtype: tf.DType, width: Any = None) -> tf.Tensor:
    """Restores a value that has traveled, on the receiver's device.

    Args:
        value: Result of `narrowed`.
        dtype: The dtype that it had before.
        width: Numbers in a row of it, if it has rows.

    Returns:
        The value in its own dtype and shape.
    """
    if dtype.is_floating and value.dtype.is_integer:
        value = quantization.dequantize(value, width)
    return value if value.dtype == dtype else tf.cast(value, dtype)


def received(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """Rounds a value that was read, on its way to the worker.

    Gradients are not rounded here, but when they are sent.

    Args:
        variable: A variable on one parameter server.
        value: The value that was read there.

    Returns:
        The value that the worker sees.
    """
    wire_dtype = dtype_of_reads(variable)
    # An update reads the variable where it lives.
    if wire_dtype is None or tensorflow_strategy.is_in_update():
        return value

    with compat.stop_recording(), tf.name_scope(_RECEIVED):
        with tf.device(variable.device):
            narrow = narrowed(value, wire_dtype)
        seen = widened(narrow, value.dtype, width_of(variable))
    compat.pass_gradients_through(value, seen)
    return seen


def is_received(operation: tf.Operation) -> bool:
    """Returns whether an operation makes the result of `received`."""
    return operation.type in ("Cast", "Mul") and _RECEIVED in operation.name

"""Fewer bits for what travels between workers and parameter servers.

A variable may have a `wire_dtype`. What a training step reads of it and the
gradients that it sends are rounded to that dtype on the way; the variable
itself, its slots, and what is computed keep theirs. What is read where no
gradient tape records (evaluate, predict), what the chief reads, saves or
assigns, and a SavedModel are not rounded.

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

from tfps_plugin._compat import tensorflow_saving
from tfps_plugin._compat import tensorflow_strategy
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.variables.compression import quantization

# To more would be to save nothing, and to fewer loses what is learnt.
DTYPES = (tf.bfloat16, tf.float16, tf.int8)
# A scale for fewer numbers than that would be most of what is saved.
_LEAST_WIDTH = 8
# One for all variables; or one, or None, for the path of each.
WireDtype: TypeAlias = str | tf.DType | Callable[[str], Any] | None
# In the names of operations, by which one finds what was rounded.
_RECEIVED = "tfps_received"


def chooser(wire_dtype: WireDtype) -> Callable[[str], tf.DType | None]:
    """Says what each variable travels as.

    Args:
        wire_dtype: Of `tfps.ParameterServerStrategy`.

    Returns:
        From the path of a variable to its dtype on the way; None: its own.

    Raises:
        ValueError: If it is neither a dtype that can be used nor callable;
            what it is called for gives no such dtype.
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
    """What values of a variable travel as, where a step is traced.

    Args:
        variable: A variable on parameter servers.

    Returns:
        A narrower dtype; None: as they are.
    """
    dtype: tf.DType | None = variable.wire_dtype
    if (
        dtype is None
        or not variable.dtype.is_floating
        or dtype.size >= variable.dtype.size
        or (dtype == tf.int8 and not _has_rows(variable))
        or compat.function_graph() is None
        or tensorflow_saving.is_saving_model()
    ):
        return None
    return dtype


def _has_rows(variable: Any) -> bool:
    """Whether it has rows that are worth a scale each."""
    shape = variable.shape
    return shape.rank == 2 and shape[1] >= _LEAST_WIDTH


def dtype_of_reads(variable: Any) -> tf.DType | None:
    """What is read of a variable now travels as; see `dtype_for`.

    Returns:
        None also where no gradient is taken: of the values themselves, people
        want all digits.
    """
    return dtype_for(variable) if compat.is_recording() else None


def narrowed(
    value: tf.Tensor, wire_dtype: tf.DType | None, *, stochastic: bool = False
) -> tf.Tensor:
    """A value as it travels; to be called where it comes from.

    Args:
        value: What is to travel.
        wire_dtype: As what; None: as it is.
        stochastic: Whether to round to int8 by chance: for gradients.
    """
    if wire_dtype is None:
        return value
    if wire_dtype == tf.int8:
        return quantization.quantize(value, stochastic=stochastic)
    return tf.cast(value, wire_dtype)


def width_of(variable: Any) -> int | None:
    """Numbers in a row of a variable, if it has rows."""
    return variable.shape[-1] if variable.shape.rank else None


def widened(value: tf.Tensor, dtype: tf.DType, width: Any = None) -> tf.Tensor:
    """A value that has travelled, as it was; to be called where it arrives.

    Args:
        value: From `narrowed`.
        dtype: What it was before.
        width: Numbers in a row of it, if it has rows.
    """
    if dtype.is_floating and value.dtype.is_integer:
        value = quantization.dequantize(value, width)
    return value if value.dtype == dtype else tf.cast(value, dtype)


def received(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """What was read of a variable, as a worker sees it.

    Gradients go by: they are rounded when they are sent themselves.

    Args:
        variable: A variable on one parameter server.
        value: What was read of it, there.
    """
    wire_dtype = dtype_of_reads(variable)
    # An update reads the variable where it is.
    if wire_dtype is None or tensorflow_strategy.is_in_update():
        return value

    with compat.stop_recording(), tf.name_scope(_RECEIVED):
        with tf.device(variable.device):
            narrow = narrowed(value, wire_dtype)
        seen = widened(narrow, value.dtype, width_of(variable))
    compat.pass_gradients_through(value, seen)
    return seen


def is_received(operation: tf.Operation) -> bool:
    """Whether an operation of a function returns what `received` does."""
    return operation.type in ("Cast", "Mul") and _RECEIVED in operation.name

"""Fewer bits for what travels between workers and parameter servers.

A variable may have a `wire_dtype`. What a training step reads of it and the
gradients that it sends are rounded to that dtype on the way; the variable
itself, its slots, and what is computed keep theirs. What is read where no
gradient tape records (evaluate, predict), what the chief reads, saves or
assigns, and a SavedModel are not rounded.
"""

import contextlib
from collections.abc import Callable
from typing import Any
from typing import TypeAlias

import tensorflow as tf

from tfps_plugin._compat import tensorflow_saving
from tfps_plugin._compat import tensorflow_strategy
from tfps_plugin._compat import tensorflow_variables as compat

# To more would be to save nothing, and to fewer loses what is learnt.
DTYPES = (tf.bfloat16, tf.float16)
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
        or compat.function_graph() is None
        or tensorflow_saving.is_saving_model()
    ):
        return None
    return dtype


def dtype_of_reads(variable: Any) -> tf.DType | None:
    """What is read of a variable now travels as; see `dtype_for`.

    Returns:
        None also where no gradient is taken: of the values themselves, people
        want all digits.
    """
    return dtype_for(variable) if compat.is_recording() else None


def narrowed(value: tf.Tensor, wire_dtype: tf.DType | None) -> tf.Tensor:
    """A value as it travels; to be called where it comes from."""
    return value if wire_dtype is None else tf.cast(value, wire_dtype)


def widened(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """A value that has travelled, as it was; to be called where it arrives."""
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
            narrow = tf.cast(value, wire_dtype)
        seen = tf.cast(narrow, value.dtype)
    compat.pass_gradients_through(value, seen)
    return seen


def is_received(operation: tf.Operation) -> bool:
    """Whether an operation of a function returns what `received` does."""
    return operation.type == "Cast" and _RECEIVED in operation.name

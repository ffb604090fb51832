"""Private TensorFlow API: constants that operations on other tasks use.

TensorFlow copies the value of a constant to the task of the device scope, and
holds Python's global interpreter lock (GIL) until the task has it. If the task
hangs, no thread of the chief runs, for minutes: nobody gives it up. While an
operation is waited for, TensorFlow releases the lock.

TensorFlow keeps one tensor for each Python number, and each tensor remembers
its copy on a task. An operation of one thread may reach the task before the
copy that another thread has just begun, and then fails ("Unable to find the
relevant tensor remote_handle").
"""

import functools
import numbers
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops


def for_one_caller(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that makes eager constants, each for one caller.

    On another task it copies them there by an operation.

    Used since TensorFlow 2.20: `constant_op.convert_to_eager_tensor`,
    `Context.device_name`, `Context.host_address_space`.
    """

    @functools.wraps(original)
    def make(value: Any, ctx: Any, dtype: Any = None) -> Any:
        if isinstance(value, tf.Tensor):
            return original(value, ctx, dtype)
        if not _is_on_another_task(ctx):
            return _own(value, original(value, ctx, dtype))
        with ops.device(None):
            here = _own(value, original(value, ctx, dtype))
        return tf.raw_ops.Identity(input=here)

    return make


def _own(value: Any, constant: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that no other caller has."""
    if not isinstance(value, numbers.Number):
        return constant
    with ops.device(constant.device):
        return tf.raw_ops.Identity(input=constant)


def _is_on_another_task(ctx: Any) -> bool:
    device = ctx.device_name
    if not device or "/job:" not in device:
        return False
    own_task: str = ctx.host_address_space()
    return not device.startswith(f"{own_task}/")

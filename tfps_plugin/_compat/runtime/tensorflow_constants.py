"""Private TensorFlow API: constants that are made on other tasks.

TensorFlow copies the value of a constant to the task of the device scope, and
holds Python's global interpreter lock (GIL) until the task has it. If the task
hangs, no thread of the chief runs, for minutes: nobody gives it up. While an
operation is waited for, TensorFlow releases the lock.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops


def copied_by_operation(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that makes eager constants.

    On another task it copies them there by an operation.

    Used since TensorFlow 2.20: `constant_op.convert_to_eager_tensor`,
    `Context.device_name`, `Context.host_address_space`.
    """

    @functools.wraps(original)
    def make(value: Any, ctx: Any, dtype: Any = None) -> Any:
        if isinstance(value, tf.Tensor) or not _is_on_another_task(ctx):
            return original(value, ctx, dtype)
        with ops.device(None):
            here = original(value, ctx, dtype)
        return tf.raw_ops.Identity(input=here)

    return make


def _is_on_another_task(ctx: Any) -> bool:
    device = ctx.device_name
    if not device or "/job:" not in device:
        return False
    own_task: str = ctx.host_address_space()
    return not device.startswith(f"{own_task}/")

"""Private TensorFlow API: gradients on the devices of the forward pass.

TensorFlow's tapes forget the device of what they record. The gradient of a
product that `tf.device` has placed on another worker would be computed by the
worker that runs the step, and both factors would travel there.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import backprop
from tensorflow.python.eager import record
from tensorflow.python.framework import ops

_IS_WORKER = "/job:worker/"
_thread_local = threading.local()


@contextlib.contextmanager
def backward_on_same_device() -> Iterator[None]:
    """Computes gradients of what is inside on its devices, whatever they are.

    Without it, this holds for devices of workers only: variables are read on
    the devices of parameter servers, but gradients go to the caller.
    """
    before = getattr(_thread_local, "on_any_device", False)
    _thread_local.on_any_device = True
    try:
        yield
    finally:
        _thread_local.on_any_device = before


def recorded_with_device(original: Callable[..., None]) -> Callable[..., None]:
    """Returns an `execute.record_gradient` whose gradients have a device."""

    @functools.wraps(original)
    def record_gradient(
        op_name: str, inputs: Any, attrs: Any, outputs: Any
    ) -> None:
        device = _named_device(outputs)
        if device is None:
            original(op_name, inputs, attrs, outputs)
            return
        name_scope = ops.get_name_scope()

        def backward(*gradients: Any) -> Any:
            found = backprop._gradient_function(
                op_name,
                attrs,
                len(inputs),
                inputs,
                outputs,
                gradients,
                (),
                name_scope,
            )
            return found if isinstance(found, list | tuple) else [found]

        # The replacement that `recorded_on_device` makes, which sets the
        # device.
        record.record_operation(op_name, outputs, inputs, backward)

    return record_gradient


def recorded_on_device(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `record.record_operation` whose gradients have a device."""

    @functools.wraps(original)
    def record_operation(
        op_type: Any,
        output_tensors: Any,
        input_tensors: Any,
        backward_function: Callable[..., Any],
        forward_function: Any = None,
    ) -> None:
        device = _named_device(output_tensors)
        if device is not None:
            backward_function = _on(device, backward_function)
        original(
            op_type,
            output_tensors,
            input_tensors,
            backward_function,
            forward_function,
        )

    return record_operation


def _on(device: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def call(*args: Any) -> Any:
        with tf.device(None), tf.device(device):
            return function(*args)

    return call


def _named_device(outputs: Sequence[Any]) -> str | None:
    """Returns the device of a traced operation that the program has placed."""
    if not outputs or not isinstance(outputs, list | tuple):
        return None
    first = outputs[0]
    if not isinstance(getattr(first, "graph", None), tf.Graph):
        return None
    device = first.op.device
    if _IS_WORKER in device or (
        device and getattr(_thread_local, "on_any_device", False)
    ):
        return str(device)
    return None

"""Private TensorFlow behaviour: the fetch of values from other tasks.

`tensor.numpy()` of a tensor on another task runs an operation of its own there,
which sends the value. TensorFlow names each such message in an attribute of the
operation, and a task keeps the kernel of every operation with other attributes
until the chief leaves: some 3 kB for each value, for ever. Inside a function,
sending is a part of it, and is prepared once.
"""

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# More than a program has: one for each combination of dtypes.
_MOST_TRACES = 64


def device_of_value(tensor: Any) -> str | None:
    """Returns the device that has a tensor's value; None: it is not eager.

    Used since TensorFlow 2.20: `EagerTensor.backing_device`.
    """
    return getattr(tensor, "backing_device", None)


class FetchFunctions:
    """Functions that bring tensors of other tasks to this one.

    They name no other task: each works for all tasks, and for a task that was
    restarted. Calls of one function with tensors of a task for the first time
    prepare it there; see `WorkerFetches`.

    Threading: any thread.
    """

    def __init__(self) -> None:
        """Traces nothing yet."""
        # A job-less name would be completed by the device around a call.
        with tf.init_scope(), tf.device(None), tf.device("/device:CPU:0"):
            self._device: str = tf.constant(0).device
        self._own_task = self._device.partition("/device:")[0] + "/"
        # Bounded: a program may fetch ever other structures.
        self.of_dtypes = functools.lru_cache(_MOST_TRACES)(self._traced)

    def is_here(self, device: str) -> bool:
        """Returns whether a device belongs to this process.

        Args:
            device: Full name of the device.
        """
        return device.startswith(self._own_task)

    def fetch(self, function: Any, tensors: Sequence[Any]) -> list[Any]:
        """Returns the tensors on this task, by one call.

        Args:
            function: What `of_dtypes` returns for their dtypes.
            tensors: The tensors.
        """
        with tf.device(self._device):
            return list(function(*tensors))

    def _traced(self, *dtypes: tf.DType) -> Callable[..., Any]:
        """Returns the function of so many tensors, of any shape."""

        def arriving(*tensors: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(self._device):
                return [tf.identity(tensor) for tensor in tensors]

        with tf.init_scope(), tf.device(None):
            return tf.function(
                arriving,
                input_signature=[tf.TensorSpec(None, each) for each in dtypes],
                autograph=False,
            ).get_concrete_function()

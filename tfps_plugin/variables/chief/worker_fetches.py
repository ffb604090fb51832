"""Fetches of values from other tasks, of which nothing stays there."""

import functools
import weakref
from collections.abc import Hashable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin._compat.runtime import tensorflow_cluster
from tfps_plugin._compat.runtime import tensorflow_fetch
from tfps_plugin.cluster.calls.worker_calls import WorkerCalls
from tfps_plugin.cluster.chief import connection

# To prepare a fetch takes milliseconds. A call that hangs is given up with its
# lane, and holds others up for so long at most.
_WAIT_SECONDS = 5.0
# These have no value that could be fetched; TensorFlow says so.
_WITHOUT_VALUE = (tf.resource, tf.variant)


class WorkerFetches:
    """Fetches of one connection.

    The chief itself runs these functions, with parts on other tasks. It
    prepares a part when a function first meets tensors of a task, and first
    after any change of the cluster; no other fetch runs meanwhile, for the
    reason that `WorkerCalls` has.

    Threading: any thread.
    Guarded by nothing: the table of keys changes by single operations.
    """

    def __init__(self) -> None:
        """Prepares nothing yet."""
        self._calls = WorkerCalls(_WAIT_SECONDS)
        # By function, and then by the devices of its arguments.
        self._keys: weakref.WeakKeyDictionary[Any, dict[Hashable, _Key]] = (
            weakref.WeakKeyDictionary()
        )

    @functools.cached_property
    def _functions(self) -> tensorflow_fetch.FetchFunctions:
        # Not at once: it starts TensorFlow. Two do no harm.
        return tensorflow_fetch.FetchFunctions()

    def arrays(self, tensors: Sequence[tf.Tensor]) -> list[Any]:
        """Returns the values of tensors; one call for all on other tasks.

        Args:
            tensors: Tensors of any task.

        Raises:
            tf.errors.OpError: If a task does not answer.
        """
        here: list[Any] = list(tensors)
        devices = {
            place: device
            for place, tensor in enumerate(here)
            if (device := self._other_device(tensor)) is not None
        }
        if devices:
            fetched = self._fetch(
                [here[place] for place in devices], (*devices.values(),)
            )
            for place, tensor in zip(devices, fetched, strict=True):
                here[place] = tensor
        return [tensor.numpy() for tensor in here]

    def give_up(self, thread_id: int) -> None:
        """Makes fetches stop waiting for that of a thread.

        Args:
            thread_id: `ident` of the thread, which may hang forever.
        """
        self._calls.give_up(thread_id)

    def _other_device(self, tensor: Any) -> str | None:
        """Returns the device to fetch from; None: `numpy` sends nothing."""
        device = tensorflow_fetch.device_of_value(tensor)
        if device is None or tensor.dtype in _WITHOUT_VALUE:
            return None
        return None if self._functions.is_here(device) else device

    def _fetch(
        self, tensors: Sequence[tf.Tensor], devices: Hashable
    ) -> list[tf.Tensor]:
        function = self._functions.of_dtypes(
            *[tensor.dtype for tensor in tensors]
        )
        key = self._keys.setdefault(function, {}).setdefault(devices, _Key())
        try:
            with self._calls.calling(key, tensorflow_cluster.num_updates()):
                return self._functions.fetch(function, tensors)
        except tf.errors.InternalError:
            # A device is gone. What reads each tensor alone names the task.
            return [*tensors]


class _Key:
    """Stands for a function with tensors of some devices."""

    __slots__ = ("__weakref__",)


def arrays(tensors: Sequence[tf.Tensor]) -> list[Any]:
    """Fetches tensors of any task, all of them by one call.

    For values that are fetched again and again: each `tensor.numpy()` of a
    tensor on another task would cost that task memory for ever.

    Args:
        tensors: The tensors.

    Returns:
        Their values: arrays, or `bytes` for scalar strings.

    Raises:
        tf.errors.OpError: If a task does not answer.
    """
    return connection.present().part(WorkerFetches).arrays(tensors)


def array(tensor: tf.Tensor) -> np.ndarray:
    """Fetches one tensor of any task; see `arrays`.

    Args:
        tensor: The tensor.

    Raises:
        tf.errors.OpError: If the task does not answer.
    """
    value: np.ndarray = arrays([tensor])[0]
    return value


def give_up(thread_id: int) -> None:
    """Makes fetches stop waiting for that of a thread.

    Args:
        thread_id: `ident` of the thread, which may hang forever.
    """
    connection.present().part(WorkerFetches).give_up(thread_id)

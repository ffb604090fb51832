"""Sums that lanes have added to a number, kept where each lane runs.

If a ps is lost, its numbers are lost with all additions. The tallies of the
lanes restore such a number.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident

_CHIEF = "/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class _Tally:
    """The sum that one lane has added.

    Attributes:
        began_at: Value of the number just before the lane's first addition.
        added: The sum of its additions since, on the worker.
    """

    began_at: Any
    added: RemoteVariable


class LaneTallies:
    """The additions of all lanes to one number that only grows.

    The number is at least the smallest `began_at` plus all additions. It is
    exactly that as long as no lane is lost and only lanes change the number.

    Threading: safe from several threads. Guarded by `_lock`: the chief's own
    tally, and those of lanes whose worker has left.
    """

    def __init__(
        self, name: str, dtype: tf.DType, read: Callable[[], tf.Tensor]
    ) -> None:
        """Begins without additions.

        Args:
            name: Name of the number, for messages.
            dtype: Dtype of the number.
            read: Reads the number.
        """
        self._name = f"{name}/added"
        self._dtype = dtype
        self._read = read
        self._lock = threading.Lock()
        self._of_chief: _Tally | None = None
        # What lanes began at and have added, whose worker has left.
        self._of_the_left: list[tuple[Any, Any]] = []
        reference = weakref.ref(self)

        def take_over(lane_index: int, tally: _Tally) -> None:
            del lane_index
            tallies = reference()
            if tallies is not None:
                tallies._take_over(tally)

        self._resident: WorkerResident[_Tally] = WorkerResident(
            self._build, per_lane=True, take_over=take_over
        )

    def handle(self) -> tf.Tensor:
        """Returns the handle of the calling lane's, or the chief's, tally."""
        if dispatch_context.current() is not None:
            return self._resident.get().added.own_handle
        with self._lock:
            if self._of_chief is None:
                self._of_chief = self._begin(_CHIEF)
            return self._of_chief.added.own_handle

    def total(self) -> Any:
        """Returns a lower bound of the number.

        Returns:
            A NumPy number; None if no lane that is alive has added to it.
        """
        tallies = self._resident.existing()
        with self._lock:
            if self._of_chief is not None:
                tallies.append(self._of_chief)
            counted = list(self._of_the_left)
        for tally in tallies:
            # The tally of a worker that does not answer is not known.
            with contextlib.suppress(tf.errors.OpError):
                counted.append((tally.began_at, number_in(tally.added)))
        if not counted:
            return None
        began_at, added = zip(*counted, strict=True)
        return min(began_at) + sum(added)

    def forget(self) -> None:
        """Starts over, because the number was set to another value."""
        self._resident.forget()
        with self._lock:
            self._of_chief = None
            self._of_the_left.clear()

    def _take_over(self, tally: _Tally) -> None:
        """Keeps the tally of a lane whose worker is about to leave."""
        with contextlib.suppress(tf.errors.OpError):
            counted = tally.began_at, number_in(tally.added)
            with self._lock:
                self._of_the_left.append(counted)

    def _build(self, context: DispatchContext) -> _Tally:
        return self._begin(context.cpu_device)

    def _begin(self, device: str) -> _Tally:
        with tf.init_scope(), compat.clear_device():
            added = RemoteVariable(
                device,
                tf.TensorShape([]),
                self._dtype,
                self._name,
                trainable=False,
            )
            with tf.device(device):
                added.assign(tf.zeros([], self._dtype))
            return _Tally(self._read().numpy(), added)


def number_in(variable: RemoteVariable) -> Any:
    """Fetches the number that this thread finds in a variable."""
    value = compat.read_resource(variable.own_handle, variable.dtype)
    return value.numpy()

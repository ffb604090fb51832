"""How much every lane has added to a number, counted where the lane runs.

A number on a ps that is lost takes all additions with it. What lanes have
counted beside it says how much it was.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident

_CHIEF = "/device:CPU:0"


@dataclasses.dataclass(frozen=True)
class _Tally:
    """What one lane has added.

    Attributes:
        began_at: What the number was, just before the lane's first addition.
        added: The sum of its additions since, on the worker.
    """

    began_at: Any
    added: RemoteVariable


class LaneTallies:
    """The additions of all lanes to one number that only grows.

    The number is at least the smallest `began_at` and all that was added
    since; and exactly that as long as no lane was lost and nothing but lanes
    has changed it.

    Threading: safe from several threads. Guarded by `_lock`: the chief's own
    tally.
    """

    def __init__(
        self, name: str, dtype: tf.DType, read: Callable[[], tf.Tensor]
    ) -> None:
        """Begins without additions.

        Args:
            name: Name of the number, for people.
            dtype: Its dtype.
            read: Reads it.
        """
        self._name = f"{name}/added"
        self._dtype = dtype
        self._read = read
        self._lock = threading.Lock()
        self._of_chief: _Tally | None = None
        self._resident: WorkerResident[_Tally] = WorkerResident(
            self._build, per_lane=True
        )

    def handle(self) -> tf.Tensor:
        """What the lane that calls is to add to, too; or else the chief."""
        if dispatch_context.current() is not None:
            return self._resident.get().added.own_handle
        with self._lock:
            if self._of_chief is None:
                self._of_chief = self._begin(_CHIEF)
            return self._of_chief.added.own_handle

    def total(self) -> Any:
        """At least so much the number was.

        Returns:
            A NumPy number; None: nobody that lives has added to it.
        """
        tallies = self._resident.existing()
        with self._lock:
            if self._of_chief is not None:
                tallies.append(self._of_chief)
        counted = []
        for tally in tallies:
            # Of a worker that does not answer nothing is known.
            with contextlib.suppress(tf.errors.OpError):
                counted.append((tally.began_at, _number(tally.added)))
        if not counted:
            return None
        began_at, added = zip(*counted, strict=True)
        return min(began_at) + sum(added)

    def forget(self) -> None:
        """Begins anew, because the number was set to something else."""
        self._resident.forget()
        with self._lock:
            self._of_chief = None

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


def _number(variable: RemoteVariable) -> Any:
    value = compat.read_resource(variable.own_handle, variable.dtype)
    return value.numpy()

"""What the chief reads from workers, for as long as they live.

A worker that is stopped, or whose machine has lost power, tells nobody: a read
from it would wait for ever. So such reads run on threads of their own, and
after some time the coordinator, which registers here, is asked whether the
worker is to be waited for.
"""

import functools
import threading
from collections.abc import Callable

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_execution
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.variables.late_bound import LateBoundVariable

# A read takes milliseconds, unless the worker computes something large.
_PATIENCE_SECONDS = 5.0

# Whether the task with that device is lost; `True`: it may be asked first.
IsLost = Callable[[str, bool], bool]

_lock = threading.Lock()
_judges: list[IsLost] = []


def register(judge: IsLost) -> Callable[[], None]:
    """Has `read` ask a coordinator.

    Args:
        judge: Is given a device, and whether it may take some seconds to ask
            the task; called on the thread of whoever reads.

    Returns:
        A function that ends this; calling it again is fine.
    """
    with _lock:
        _judges.append(judge)

    def unregister() -> None:
        with _lock:
            if judge in _judges:
                _judges.remove(judge)

    return unregister


def read(variable: LateBoundVariable) -> tf.Tensor:
    """Reads a worker's variable.

    Returns:
        The value, in this process.

    Raises:
        WorkerLostError: If the worker is lost, or stays silent.
        tf.errors.OpError: If it cannot be read.
    """
    device = variable.device
    if _is_lost(device, may_ask=False):
        raise _lost(variable)
    reading = _Reading(
        functools.partial(_read, variable.own_handle, variable.dtype)
    )
    while not reading.ended.wait(_PATIENCE_SECONDS):
        if _is_lost(device, may_ask=True):
            raise _lost(variable)
    return reading.result()


def _read(handle: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.constant(compat.read_resource(handle, dtype).numpy(), dtype)


class _Reading:
    """A read on a thread of its own, which may hang for ever.

    Attributes:
        ended: Set when there is a result.
    """

    def __init__(self, read_once: Callable[[], tf.Tensor]) -> None:
        self._read_once = read_once
        self._value: tf.Tensor | None = None
        self._error: BaseException | None = None
        self.ended = threading.Event()
        # A daemon: nobody can end it.
        threading.Thread(
            target=self._run, name="tfps-call-read", daemon=True
        ).start()

    def _run(self) -> None:
        executor = tensorflow_execution.new_synchronous_executor()
        try:
            with tensorflow_execution.executor_scope(executor):
                self._value = self._read_once()
        except BaseException as error:
            tensorflow_execution.forget_error(executor)
            self._error = error
        self.ended.set()

    def result(self) -> tf.Tensor:
        """What was read."""
        if self._error is not None:
            raise self._error
        return self._value


def _is_lost(device: str, *, may_ask: bool) -> bool:
    with _lock:
        judges = list(_judges)
    return any(judge(device, may_ask) for judge in judges)


def _lost(variable: LateBoundVariable) -> errors.WorkerLostError:
    return errors.WorkerLostError(
        f"The copy of {variable.name!r} cannot be read: its worker is lost, or "
        "does not answer any more. Expected it to live. Received: device="
        f"{variable.device!r}. What it has counted is missing."
    )

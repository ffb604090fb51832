"""Private TensorFlow API: the device that a program names by `tf.device`.

Outside of functions, TensorFlow completes each name at once: "/CPU:0" becomes
a device of the chief, and "/job:ps" becomes one of task 0. Its public API no
longer shows what the program has said.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context

# Whether this thread is in `keeping_whole`.
_local = threading.local()


class NamedDevice(NamedTuple):
    """A device, as far as the program names it.

    Attributes:
        given: The name for messages.
        job: Name of the job; None: the program names no task.
        task: Index of the task; None: any task of the job.
        replica: Number of the replica.
        kind: Kind of the device, such as "CPU".
        number: Number of the device among those of its kind.
        in_function: Whether a function is being traced, in which the device
            may be meant for operations.
        keeps_whole: Whether variables under it are whole on purpose.
    """

    given: str
    job: str | None
    task: int | None
    replica: int
    kind: str
    number: int
    in_function: bool = False
    keeps_whole: bool = False


@contextlib.contextmanager
def keeping_whole() -> Iterator[None]:
    """Marks devices that this thread names as meant for whole variables."""
    before = getattr(_local, "keeps_whole", False)
    _local.keeps_whole = True
    try:
        yield
    finally:
        _local.keeps_whole = before


def named_device() -> NamedDevice | None:
    """Returns the device under which this thread runs; None: no device.

    Names that are nested in the program are put together.
    """
    current = context.context()
    if not current.device_name:
        return None
    whole = current.device_spec
    around, name = _as_given(whole)
    given = tf.DeviceSpec.from_string(name)
    own_job = tf.DeviceSpec.from_string(current._context_devices[0]).job
    names_job = given.job is not None or whole.job != own_job
    names_task = (
        given.task is not None
        or bool(whole.task)
        or (given.job is None and bool(around))
    )
    return NamedDevice(
        name if given.job is not None else whole.to_string(),
        whole.job if names_job or given.task is not None else None,
        whole.task if names_task else None,
        whole.replica or 0,
        whole.device_type or "CPU",
        whole.device_index or 0,
        any(
            switch.is_building_function
            for switch in current.context_switches.stack
        ),
        getattr(_local, "keeps_whole", False),
    )


def _as_given(whole: tf.DeviceSpec) -> tuple[str, str]:
    """Returns the device around, and the name that was given inside of it."""
    for (around, name), (_, spec) in list(
        context._device_parsing_cache.items()
    ):
        if spec is whole:
            return around or "", name or ""
    return "", whole.to_string()

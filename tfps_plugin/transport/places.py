"""Places: the tasks that devices belong to."""

import tensorflow as tf

from tfps_plugin.variables.lookup import graph_checks

# The task that runs the function, for operations without another place.
HERE = ""


def job(device: str) -> str | None:
    """Returns the job of a device; None for a device of the caller's task."""
    return tf.DeviceSpec.from_string(device).job if device else None


def place(device: str) -> str:
    """Returns the task of a device as a device name; empty for the worker."""
    if not device:
        return HERE
    spec = tf.DeviceSpec.from_string(device)
    if spec.job is None:
        return HERE
    return tf.DeviceSpec(
        job=spec.job, replica=spec.replica or 0, task=spec.task or 0
    ).to_string()


def cpu_of(place: str) -> str:
    """Returns the CPU of a task."""
    return place + graph_checks.CPU


def is_on_cpu(device: str) -> bool:
    """Returns whether a device name is that of a CPU."""
    return bool(tf.DeviceSpec.from_string(device).device_type == "CPU")


def has_accelerators() -> bool:
    """Returns whether a worker has devices other than CPUs."""
    return any(
        device.device_type != "CPU" and job(device.name) == "worker"
        for device in tf.config.list_logical_devices()
    )

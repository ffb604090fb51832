"""Which task a device belongs to."""

import tensorflow as tf

from tfps_plugin.variables.lookup import graph_checks

# Where a function runs: what has no other place.
HERE = ""


def job(device: str) -> str | None:
    """The job of a device; None: the device is the caller's own task's."""
    return tf.DeviceSpec.from_string(device).job if device else None


def place(device: str) -> str:
    """The task of a device, as a device name; empty: the worker's own."""
    if not device:
        return HERE
    spec = tf.DeviceSpec.from_string(device)
    if spec.job is None:
        return HERE
    return tf.DeviceSpec(
        job=spec.job, replica=spec.replica or 0, task=spec.task or 0
    ).to_string()


def cpu_of(place: str) -> str:
    """The CPU of a task."""
    return place + graph_checks.CPU


def is_on_cpu(device: str) -> bool:
    """Whether a device is said to be a CPU."""
    return bool(tf.DeviceSpec.from_string(device).device_type == "CPU")


def has_accelerators() -> bool:
    """Whether a worker computes on something else than CPUs."""
    return any(
        device.device_type != "CPU" and job(device.name) == "worker"
        for device in tf.config.list_logical_devices()
    )

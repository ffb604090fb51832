"""Devices of workers, on each of which one replica computes."""

from collections.abc import Mapping
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin import errors

_CPU = "CPU"
# Stands for whatever device TensorFlow chooses.
ANY = ("",)


def choose(
    devices_by_worker: Mapping[str, Sequence[str]],
    replicas_per_worker: int | None = None,
) -> tuple[str, ...]:
    """Returns the devices that replicas of a worker compute on.

    These are its accelerators. A worker without any has as many replicas as it
    has logical CPUs, which is one unless its server was started with more.

    Args:
        devices_by_worker: Full names of the devices of each worker that has
            answered, by its name.
        replicas_per_worker: Number of replicas; None: one for each device.

    Returns:
        Device names without a task, such as `"/device:GPU:1"`; `("",)` for one
        replica.

    Raises:
        ClusterConfigurationError: If a worker has fewer devices than replicas;
            or, if no number is given, if workers have different ones.
    """
    found = {
        worker: _accelerators(devices)
        for worker, devices in devices_by_worker.items()
    }
    if replicas_per_worker == 1 or not found:
        return ANY
    if replicas_per_worker is None:
        if len({*found.values()}) > 1:
            raise errors.ClusterConfigurationError(
                "Workers have different accelerators, and each replica of a "
                "worker computes on one. Expected the same ones on all "
                f"workers, or replicas_per_worker. Received: {_shown(found)}. "
                "Pass replicas_per_worker=1, or the largest number that every "
                "worker has, to tfps.ParameterServerStrategy()."
            )
        (devices,) = {*found.values()}
    else:
        fewest = min(found.values(), key=len)
        if (
            len(fewest) < replicas_per_worker
            or len({each[:replicas_per_worker] for each in found.values()}) > 1
        ):
            raise errors.ClusterConfigurationError(
                "Each replica of a worker computes on one of its devices. "
                f"Expected {replicas_per_worker} of one kind on every worker. "
                f"Received: {_shown(found)}, with "
                f"replicas_per_worker={replicas_per_worker!r}. Pass a smaller "
                "number, or start the workers with more devices."
            )
        devices = fewest[:replicas_per_worker]
    return devices if len(devices) > 1 else ANY


def for_copies(
    devices_by_worker: Mapping[str, Sequence[str]],
    replica_devices: Sequence[str],
) -> tuple[str, ...]:
    """Returns the devices to which batches are copied before a step needs them.

    Args:
        devices_by_worker: As for `choose`.
        replica_devices: Result of `choose`.

    Returns:
        The device of each replica. For one replica, the first accelerator, on
        which TensorFlow places what it can. Nothing if workers have no
        accelerators, or different ones: a batch is on the CPU anyway.
    """
    if len(replica_devices) > 1:
        return tuple(replica_devices)
    firsts = {
        _accelerators(devices)[:1] for devices in devices_by_worker.values()
    }
    if len(firsts) != 1:
        return ()
    (first,) = firsts
    return tuple(each for each in first if not each.startswith("/device:CPU"))


def missing(
    devices: Sequence[str], replica_devices: Sequence[str]
) -> list[str]:
    """Returns the devices of replicas that a worker lacks.

    Args:
        devices: Full names of its devices.
        replica_devices: Result of `choose`.
    """
    present = {_without_task(name) for name in devices}
    return [
        device for device in replica_devices if device and device not in present
    ]


def require_number(replicas_per_worker: int | None) -> None:
    """Refuses what is no number of replicas.

    Raises:
        ValueError: If it is none.
    """
    if replicas_per_worker is None:
        return
    if (
        isinstance(replicas_per_worker, bool)
        or not isinstance(replicas_per_worker, int)
        or replicas_per_worker < 1
    ):
        raise ValueError(
            "A worker of tfps.ParameterServerStrategy() cannot have this "
            "number of replicas. Expected a whole number of at least 1, or "
            "None. Received: "
            f"replicas_per_worker={replicas_per_worker!r}. Leave it out for "
            "one replica on each accelerator of a worker."
        )


def _accelerators(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the accelerators of a worker, or its CPUs, without its task."""
    devices = [_without_task(name) for name in names]
    by_kind: dict[str, list[str]] = {}
    for device in devices:
        kind = tf.DeviceSpec.from_string(device).device_type
        by_kind.setdefault(kind, []).append(device)
    kinds = [kind for kind in by_kind if kind != _CPU and "XLA" not in kind]
    chosen = by_kind.get(kinds[0] if kinds else _CPU, [])
    return tuple(
        sorted(
            chosen,
            key=lambda name: tf.DeviceSpec.from_string(name).device_index,
        )
    )


def _without_task(name: str) -> str:
    spec = tf.DeviceSpec.from_string(name)
    return f"/device:{spec.device_type}:{spec.device_index}"


def _shown(found: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(
        f"{worker} has {len(devices)}: "
        + ", ".join(device.removeprefix("/device:") for device in devices)
        for worker, devices in found.items()
    )

"""Tests of the choice of devices for replicas."""

import pytest

from tfps_plugin import errors
from tfps_plugin.strategy.replicas import worker_devices

_TASK = "/job:worker/replica:0/task:{}/device:{}"


def _worker(index: int, *devices: str) -> dict[str, list[str]]:
    return {f"worker {index}": [_TASK.format(index, each) for each in devices]}


def test_a_worker_has_a_replica_on_each_accelerator() -> None:
    devices = _worker(0, "CPU:0", "GPU:1", "GPU:0") | _worker(
        1, "CPU:0", "GPU:0", "GPU:1"
    )
    assert worker_devices.choose(devices) == ("/device:GPU:0", "/device:GPU:1")


def test_logical_cpus_count_without_accelerators() -> None:
    devices = _worker(0, "CPU:0", "CPU:1", "CPU:2")
    assert worker_devices.choose(devices, 2) == (
        "/device:CPU:0",
        "/device:CPU:1",
    )


@pytest.mark.parametrize(
    "devices", [["CPU:0"], ["CPU:0", "GPU:0"], ["CPU:0", "XLA_CPU:0"]]
)
def test_one_replica_computes_where_tensorflow_chooses(
    devices: list[str],
) -> None:
    assert worker_devices.choose(_worker(0, *devices)) == worker_devices.ANY


def test_nobody_is_known_to_have_replicas_before_a_worker_answers() -> None:
    assert worker_devices.choose({}, 4) == worker_devices.ANY


def test_unequal_numbers_name_the_workers() -> None:
    devices = _worker(0, "GPU:0", "GPU:1") | _worker(1, "GPU:0")
    with pytest.raises(
        errors.ClusterConfigurationError,
        match=r"worker 0 has 2: GPU:0, GPU:1; worker 1 has 1: GPU:0\.",
    ):
        worker_devices.choose(devices)
    assert worker_devices.choose(devices, 1) == worker_devices.ANY


def test_too_few_devices_name_the_workers() -> None:
    devices = _worker(0, "GPU:0", "GPU:1") | _worker(1, "GPU:0")
    with pytest.raises(
        errors.ClusterConfigurationError,
        match=r"worker 1 has 1: GPU:0, with replicas_per_worker=2\.",
    ):
        worker_devices.choose(devices, 2)


def test_replicas_are_on_devices_of_one_kind() -> None:
    devices = _worker(0, "CPU:0", "GPU:0", "GPU:1") | _worker(
        1, "CPU:0", "CPU:1"
    )
    with pytest.raises(errors.ClusterConfigurationError, match="one kind"):
        worker_devices.choose(devices, 2)


def test_a_worker_that_comes_back_may_lack_devices() -> None:
    chosen = ("/device:GPU:0", "/device:GPU:1")
    (devices,) = _worker(3, "CPU:0", "GPU:0").values()
    assert worker_devices.missing(devices, chosen) == ["/device:GPU:1"]
    assert worker_devices.missing(devices, worker_devices.ANY) == []


@pytest.mark.parametrize("number", [0, -1, 1.0, True, "2"])
def test_what_is_no_number_of_replicas_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match=r"replicas_per_worker=.*Leave it out"):
        worker_devices.require_number(number)  # type: ignore[arg-type]


def test_numbers_of_replicas_are_taken() -> None:
    for number in (None, 1, 8):
        worker_devices.require_number(number)


@pytest.mark.parametrize(
    ("workers", "replicas", "expected"),
    [
        ([["CPU:0"]], None, ()),
        ([["CPU:0", "CPU:1"]], 1, ()),
        ([["CPU:0", "CPU:1"]], 2, ("CPU:0", "CPU:1")),
        ([["CPU:0", "GPU:0"]] * 2, None, ("GPU:0",)),
        ([["CPU:0", "GPU:1", "GPU:0"]], 1, ("GPU:0",)),
        ([["CPU:0", "GPU:0", "GPU:1"]], None, ("GPU:0", "GPU:1")),
        ([["CPU:0", "GPU:0"], ["CPU:0"]], 1, ()),
        ([["CPU:0", "GPU:0"], ["CPU:0", "TPU:0"]], 1, ()),
        ([], None, ()),
    ],
)
def test_batches_are_copied_to_what_computes_elsewhere(
    workers: list[list[str]], replicas: int | None, expected: tuple[str, ...]
) -> None:
    devices = {
        name: names
        for index, each in enumerate(workers)
        for name, names in _worker(index, *each).items()
    }
    chosen = worker_devices.choose(devices, replicas)
    assert worker_devices.for_copies(devices, chosen) == tuple(
        f"/device:{each}" for each in expected
    )

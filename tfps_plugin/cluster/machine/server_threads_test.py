"""Tests of the threads of a task's server."""

import os
import pathlib

import pytest

from tfps_plugin.cluster import spec
from tfps_plugin.cluster.machine import server_threads


def _config(workers: list[str], job: str = "worker") -> spec.TaskConfig:
    cluster = spec.ClusterSpec.from_dict(
        {"worker": workers, "ps": ["127.0.0.1:7"], "chief": ["127.0.0.1:8"]}
    )
    return spec.TaskConfig(cluster=cluster, job=job, index=0)


@pytest.mark.parametrize(
    ("workers", "cores", "expected"),
    [
        (["127.0.0.1:1", "127.0.0.1:2"], 2, 1),
        (["127.0.0.1:1", "127.0.0.1:2"], 16, 8),
        (["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], 2, 1),
        (["10.0.0.1:1", "10.0.0.2:1"], 16, 16),
        (["127.0.0.1:1"], 16, 16),
    ],
)
def test_tasks_of_a_job_on_one_machine_share_it(
    workers: list[str], cores: int, expected: int
) -> None:
    threads = server_threads.server_threads(_config(workers), cores, {})
    assert threads.inside_operations == expected


def test_the_number_of_the_user_is_left_to_tensorflow() -> None:
    threads = server_threads.server_threads(
        _config(["127.0.0.1:1"]), 8, {"TF_NUM_INTRAOP_THREADS": "3"}
    )
    assert threads.inside_operations == 0


@pytest.mark.parametrize(("cores", "expected"), [(2, 16), (8, 16), (64, 128)])
def test_functions_that_wait_leave_threads_to_others(
    cores: int, expected: int
) -> None:
    threads = server_threads.server_threads(
        _config(["127.0.0.1:1"], "ps"), cores, {}
    )
    assert threads.between_operations == expected


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        ("6400000000 100000\n", None),
        ("max 100000\n", None),
        ("", None),
    ],
)
def test_a_container_may_use_what_its_quota_allows(
    quota: str, expected: int | None, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    cores = len(os.sched_getaffinity(0))
    assert server_threads.usable_cores(file) == (expected or cores)


def test_without_a_container_all_cores_are_used(
    tmp_path: pathlib.Path,
) -> None:
    cores = len(os.sched_getaffinity(0))
    assert server_threads.usable_cores(tmp_path / "none") == cores

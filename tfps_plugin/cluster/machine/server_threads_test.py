"""Tests of the sizes of a server's thread pools."""

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
    assert threads.intra_op == expected


def test_the_number_of_the_user_is_left_to_tensorflow() -> None:
    threads = server_threads.server_threads(
        _config(["127.0.0.1:1"]), 8, {"TF_NUM_INTRAOP_THREADS": "3"}
    )
    assert threads.intra_op == 0


@pytest.mark.parametrize(("cores", "expected"), [(2, 16), (8, 16), (64, 128)])
def test_functions_that_wait_leave_threads_to_others(
    cores: int, expected: int
) -> None:
    threads = server_threads.server_threads(
        _config(["127.0.0.1:1"], "ps"), cores, {}
    )
    assert threads.inter_op == expected

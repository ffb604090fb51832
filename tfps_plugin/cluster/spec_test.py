"""Tests of the description of a cluster, and of refused addresses."""

import pytest

from tfps_plugin import errors
from tfps_plugin.cluster import spec
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_JOBS = {"worker": ["a:1", "b:1"], "ps": ["c:1"], "chief": ["d:1"]}


def test_tasks_have_names() -> None:
    cluster = ClusterSpec.from_dict(_JOBS)
    assert [str(task) for task in cluster.tasks] == [
        "chief 0",
        "worker 0",
        "worker 1",
        "ps 0",
    ]
    assert cluster.task("ps", 0).name == "/job:ps/replica:0/task:0"
    assert cluster.serving_tasks == cluster.tasks[1:]
    assert Task("ps", 0, "[::1]:22").host == "::1"


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":1",
        "a:",
        "a:0",
        "a:65536",
        "a:b",
        "a b:1",
        "a:1 ",
        "a:1:1",
        "a:\u0661",
        "::1:1",
        "[::1]",
        "-a:1",
        "a-:1",
        "http://a:1",
    ],
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(errors.ClusterConfigurationError) as caught:
        ClusterSpec(("a:1",), (address,))
    assert f"cluster.ps[0]={address!r}" in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "a:1",
        "my_host.:1",
        "10.0.0.1:65535",
        "[fe80::1%eth0]:1",
        "job-ps-0.ns.svc:2222",
    ],
)
def test_well_formed_addresses_are_accepted(address: str) -> None:
    cluster = ClusterSpec(("w:1",), (address,))
    assert cluster.parameter_servers[0].address == address
    assert spec.join_address(*spec.split_address(address)) == address

"""Tests of the cores that tasks of one machine keep to."""

import collections
import os

import hypothesis
import pytest
from hypothesis import strategies as st

from tfps_plugin.cluster import spec
from tfps_plugin.cluster.machine import server_threads
from tfps_plugin.cluster.machine import shared_cores

_ALL = ",".join(map(str, sorted(os.sched_getaffinity(0))))


def _config(
    hosts: list[str], index: int = 0, job: str = "worker"
) -> spec.TaskConfig:
    addresses = [f"{host}:{5000 + n}" for n, host in enumerate(hosts)]
    cluster = spec.ClusterSpec.from_dict(
        {
            "chief": ["10.0.0.1:1"],
            "worker": addresses,
            "ps": [f"10.0.0.1:{9000 + n}" for n in range(2)],
        }
    )
    return spec.TaskConfig(cluster=cluster, job=job, index=index)


@hypothesis.given(
    st.integers(1, 12), st.sets(st.integers(0, 99), min_size=1, max_size=20)
)
def test_all_cores_are_used_and_shared_evenly(
    num_workers: int, cores: set[int]
) -> None:
    hosts = ["10.0.0.1"] * num_workers
    shares = [
        shared_cores.share(_config(hosts, n), sorted(cores))
        for n in range(num_workers)
    ]
    sizes = {len(share) for share in shares}
    users = collections.Counter(core for share in shares for core in share)
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    if num_workers <= len(cores):
        assert users == collections.Counter(cores)
    else:
        assert set(users) == cores
        assert max(users.values()) - min(users.values()) <= 1


def test_what_is_beside_each_other_on_the_machine_stays_together() -> None:
    hosts = ["10.0.0.1", "10.0.0.1"]
    assert shared_cores.share(_config(hosts, 1), [0, 1, 2, 3]) == {2, 3}


def test_workers_do_not_share_with_parameter_servers_or_other_machines() -> (
    None
):
    hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert shared_cores.share(_config(hosts, 1), [0, 1]) == {0, 1}
    assert shared_cores.share(_config(hosts, 2), [0, 1]) == {1}
    assert shared_cores.share(_config(hosts, 1, "ps"), [0, 1]) == {1}


def test_a_user_s_setting_is_kept() -> None:
    assert shared_cores.variables({"TFPS_SHARED_CORES": ""}) == {}
    assert shared_cores.variables({"TFPS_SHARED_CORES": "7"}) == {}


def test_a_container_that_has_a_quota_runs_anywhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(server_threads, "usable_cores", lambda: cores)
    assert shared_cores.variables({}) == {"TFPS_SHARED_CORES": _ALL}
    monkeypatch.setattr(server_threads, "usable_cores", lambda: cores - 1)
    assert shared_cores.variables({}) == {}


@pytest.mark.parametrize("cores", [None, "", "all", _ALL, f"{_ALL},1234"])
def test_only_a_task_that_shares_all_its_cores_takes_a_part(
    cores: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda _, share: taken.append(share)
    )
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None)
    config = _config(["10.0.0.1", "10.0.0.1"], 1)
    shared_cores.share_machine(
        config, {} if cores is None else {"TFPS_SHARED_CORES": cores}
    )
    own = shared_cores.share(config, sorted(os.sched_getaffinity(0)))
    assert taken == ([own] if cores == _ALL else [])


@pytest.mark.parametrize(
    ("cores", "policy", "expected"),
    [
        (_ALL, os.SCHED_OTHER, [os.SCHED_BATCH]),
        # A user's own cores, but a machine that is shared all the same.
        (f"{_ALL},1234", os.SCHED_OTHER, [os.SCHED_BATCH]),
        (_ALL, os.SCHED_IDLE, []),
        ("", os.SCHED_OTHER, []),
        (None, os.SCHED_OTHER, []),
    ],
)
def test_a_task_that_shares_a_machine_interrupts_nobody(
    cores: str | None,
    policy: int,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: policy)
    monkeypatch.setattr(
        os, "sched_setscheduler", lambda _, new, __: chosen.append(new)
    )
    shared_cores.share_machine(
        _config(["10.0.0.1"]),
        {} if cores is None else {"TFPS_SHARED_CORES": cores},
    )
    assert chosen == expected

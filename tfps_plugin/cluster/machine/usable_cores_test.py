"""Tests of the number of cores that a process may use."""

import os
import pathlib
from collections.abc import Mapping

import pytest

from tfps_plugin.cluster.machine import usable_cores

_ALL = len(os.sched_getaffinity(0))
_VERSION_1 = "4:memory:/job\n3:cpu,cpuacct:/job/task\n2:cpuset:/\n"


def _root(folder: pathlib.Path, files: Mapping[str, str]) -> pathlib.Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def _version_1(quota: str, group: str = "") -> dict[str, str]:
    folder = f"sys/fs/cgroup/cpu,cpuacct/{group}"
    return {
        f"{folder}/cpu.cfs_quota_us": f"{quota}\n",
        f"{folder}/cpu.cfs_period_us": "100000\n",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        # Version 2: of a container, of the process's group, of one around it.
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"sys/fs/cgroup/cpu.max": ""}, None),
        ({"sys/fs/cgroup/job/task/cpu.max": "50000 100000\n"}, 0.5),
        (
            {
                "sys/fs/cgroup/job/task/cpu.max": "max 100000\n",
                "sys/fs/cgroup/job/cpu.max": "200000 100000\n",
            },
            2.0,
        ),
    ],
)
def test_quotas_of_version_2(
    files: dict[str, str], expected: float | None, tmp_path: pathlib.Path
) -> None:
    root = _root(tmp_path, {"proc/self/cgroup": "0::/job/task\n", **files})
    assert usable_cores.cpu_quota(root) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (_version_1("50000"), 0.5),
        (_version_1("-1"), None),
        (_version_1("", "job/task"), None),
        ({**_version_1("-1"), **_version_1("300000", "job")}, 3.0),
        (
            {**_version_1("100000", "job"), **_version_1("70000", "job/task")},
            0.7,
        ),
    ],
)
def test_quotas_of_version_1(
    files: dict[str, str], expected: float | None, tmp_path: pathlib.Path
) -> None:
    root = _root(tmp_path, {"proc/self/cgroup": _VERSION_1, **files})
    assert usable_cores.cpu_quota(root) == expected


def test_a_group_outside_the_namespace_is_found_at_the_mount(
    tmp_path: pathlib.Path,
) -> None:
    root = _root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../job\n",
            "sys/fs/cgroup/cpu.max": "100000 100000\n",
        },
    )
    assert usable_cores.cpu_quota(root) == 1.0


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("50000", 1), ("100000", 1), ("6400000000", _ALL), ("max", _ALL)],
)
def test_a_container_uses_no_more_than_its_quota(
    quota: str, expected: int, tmp_path: pathlib.Path
) -> None:
    root = _root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": f"{quota} 100000\n",
        },
    )
    assert usable_cores.usable_cores(root) == expected


def test_a_refused_call_leaves_all_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    def refuse(_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", refuse)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores.allowed_cores() == {0, 1, 2}
    assert usable_cores.usable_cores(tmp_path) == 3

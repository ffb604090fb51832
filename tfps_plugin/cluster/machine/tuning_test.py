"""Tests of the settings that tasks have only if the user asks for them."""

import logging
import os
import pathlib
import threading

import pytest

from tfps_plugin.cluster import spec
from tfps_plugin.cluster.machine import core_shares
from tfps_plugin.cluster.machine import malloc_settings
from tfps_plugin.cluster.machine import tuning
from tfps_plugin.cluster.machine import usable_cores

# A process that has its settings of malloc and sees no GPU.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "MALLOC_ARENA_MAX": "2"}
_CLUSTER = spec.ClusterSpec.from_dict(
    {
        "chief": ["127.0.0.1:1"],
        "worker": ["127.0.0.1:2", "127.0.0.1:3"],
        "ps": ["127.0.0.1:4"],
    }
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, False), ("", False), ("0", False), ("1", True)],
)
def test_nothing_is_on_unasked(value: str | None, expected: bool) -> None:
    environment = {} if value is None else {"TFPS_TUNE": value}
    assert tuning.is_on(environment) == expected


def test_tasks_are_told_either_way() -> None:
    """The environment of the starter, which they inherit, may say otherwise."""
    assert tuning.task_variables({"TFPS_TUNE": "1"}, tune=False) == {
        "TFPS_TUNE": "0"
    }
    tuned = tuning.task_variables({}, tune=True)
    assert tuned == {"TFPS_TUNE": "1", **malloc_settings.variables({})}


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of two physical cores with two hyper-threads each."""
    monkeypatch.setattr(
        usable_cores, "allowed_cores", lambda: frozenset(range(4))
    )
    monkeypatch.setattr(usable_cores, "cpu_quota", lambda *_: None)
    monkeypatch.setattr(
        core_shares,
        "physical_cores",
        lambda _: [frozenset([0, 2]), frozenset([1, 3])],
    )


def _arguments(*, tune: bool = True) -> list[str]:
    return [
        " ".join(tuning.task_arguments(_CLUSTER, task, tune=tune))
        for task in _CLUSTER.serving_tasks
    ]


@pytest.mark.usefixtures("four_cores")
def test_each_job_shares_the_cores() -> None:
    assert _arguments() == ["--cores 0 2", "--cores 1 3", "--cores 0 1 2 3"]
    assert _arguments(tune=False) == ["", "", ""]


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(("quota", "is_shared"), [(2.5, False), (4.0, True)])
def test_tasks_under_a_quota_run_on_any_core(
    quota: float, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usable_cores, "cpu_quota", lambda *_: quota)
    assert all(_arguments()) == is_shared


def _scheduling() -> tuple[set[int], int]:
    return os.sched_getaffinity(0), os.sched_getscheduler(0)


def _scheduling_of_new_thread() -> tuple[set[int], int]:
    found = []
    thread = threading.Thread(target=lambda: found.append(_scheduling()))
    thread.start()
    thread.join()
    return found[0]


def test_threads_inherit_the_scheduling_inside_and_only_there() -> None:
    before = _scheduling()
    core = min(before[0])
    with tuning.applied("worker", [core], _ENVIRONMENT):
        inside = _scheduling_of_new_thread()
    assert inside == ({core}, os.SCHED_BATCH)
    assert _scheduling() == _scheduling_of_new_thread() == before


def test_without_cores_a_task_runs_on_all() -> None:
    before = _scheduling()
    with tuning.applied("ps", [], _ENVIRONMENT):
        assert _scheduling() == (before[0], os.SCHED_BATCH)


def test_the_policy_of_a_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_IDLE)
    monkeypatch.delattr(os, "sched_setscheduler")
    with tuning.applied("worker", [], _ENVIRONMENT):
        pass


@pytest.mark.parametrize(
    "call",
    [
        "sched_getaffinity",
        "sched_setaffinity",
        "sched_getscheduler",
        "sched_setscheduler",
    ],
)
def test_a_refused_call_is_said_once_and_harms_nothing(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("Operation not permitted")

    before = _scheduling()
    with monkeypatch.context() as patches:
        patches.setattr(os, call, refuse)
        with (
            caplog.at_level(logging.INFO),
            tuning.applied("worker", [min(before[0])], _ENVIRONMENT),
        ):
            pass
    assert _scheduling() == before
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "Operation not permitted" in caplog.text


def test_a_system_without_the_calls_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    monkeypatch.delattr(os, "SCHED_OTHER")
    with tuning.applied("worker", [0], _ENVIRONMENT):
        pass


def test_the_scheduling_is_restored_after_an_error() -> None:
    before = _scheduling()
    with (
        pytest.raises(ValueError, match="of the server"),
        tuning.applied("worker", [min(before[0])], _ENVIRONMENT),
    ):
        raise ValueError("of the server")
    assert _scheduling() == before


def test_settings_of_malloc_that_come_too_late_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing = malloc_settings.variables({})
    with caplog.at_level(logging.INFO), tuning.applied("ps", [], {}):
        pass
    for name, value in missing.items():
        assert f"{name}={value}" in caplog.text
    assert len(caplog.records) == len(missing)


@pytest.mark.parametrize(
    ("device", "environment", "expected"),
    [
        (None, {}, False),
        ("nvidiactl", {}, False),
        ("nvidia0", {}, True),
        ("kfd", {}, True),
        ("nvidia0", {"CUDA_VISIBLE_DEVICES": "0"}, True),
        ("nvidia0", {"CUDA_VISIBLE_DEVICES": ""}, False),
        ("nvidia0", {"CUDA_VISIBLE_DEVICES": "-1"}, False),
        ("kfd", {"HIP_VISIBLE_DEVICES": "-1"}, False),
    ],
)
def test_a_gpu_is_seen_without_its_driver(
    device: str | None,
    environment: dict[str, str],
    expected: bool,
    tmp_path: pathlib.Path,
) -> None:
    if device is not None:
        (tmp_path / device).touch()
    assert tuning.sees_gpu(environment, tmp_path) == expected


def test_workers_with_a_gpu_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tuning, "sees_gpu", lambda _: True)
    before = _scheduling()
    with tuning.applied("worker", [min(before[0])], {}):
        assert _scheduling() == before
    with tuning.applied("ps", [], {}):
        assert _scheduling()[1] == os.SCHED_BATCH

"""Tests of batches whose gradients came too late for their step."""

import logging

import pytest

from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.training.steps.epoch.late_batches import LateBatches


def _log_of_an_epoch(num_backup: int, caplog: pytest.LogCaptureFixture) -> str:
    late = LateBatches(num_backup, Counters())
    late.note(0, 5)
    late.settle({0: 2}.__getitem__)
    late.leave_out(32)
    with caplog.at_level(logging.INFO, "tfps_plugin"):
        late.report()
    return caplog.text


def test_an_epoch_tells_what_came_too_late(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = _log_of_an_epoch(1, caplog)
    assert "3 batches" in told
    assert "32 examples" in told


def test_without_backup_workers_nothing_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not _log_of_an_epoch(0, caplog)

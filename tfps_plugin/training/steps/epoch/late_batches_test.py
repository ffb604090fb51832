"""Tests of batches whose gradients came too late for their step."""

import logging

import pytest

from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.training.steps.epoch.late_batches import LateBatches


def test_what_had_no_part_in_a_step_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters = Counters()
    late = LateBatches(1, counters)
    late.note(0, 5)
    late.note(1, 3)
    late.note(1, 1)
    late.settle({0: 5, 1: 2}.__getitem__)
    # Steps that are made again.
    late.note(1, 7)
    late.settle(None)
    late.note(1, 1)
    late.settle({1: 0}.__getitem__)
    late.leave_out(32)
    assert counters.value("gradients_dropped") == 3
    with caplog.at_level(logging.INFO, "tfps_plugin"):
        late.report()
    assert "3 batches" in caplog.text
    assert "32 examples" in caplog.text


def test_without_backup_workers_nothing_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters = Counters()
    late = LateBatches(0, counters)
    late.note(0, 5)
    late.settle({0: 4}.__getitem__)
    with caplog.at_level(logging.INFO, "tfps_plugin"):
        late.report()
    assert not caplog.text
    assert not counters.value("gradients_dropped")

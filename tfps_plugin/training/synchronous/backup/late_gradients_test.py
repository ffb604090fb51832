"""Tests of the count of gradients that came too late for their step."""

from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.training.synchronous.backup.late_gradients import LateGradients


def test_what_had_no_part_in_a_step_is_counted() -> None:
    counters = Counters()
    late = LateGradients(1, counters)
    late.note(0, 5)
    late.note(1, 3)
    late.note(1, 1)
    late.settle({0: 5, 1: 2}.__getitem__)
    assert late.num_dropped == 2
    # Steps that are made again.
    late.note(1, 7)
    late.settle(None)
    late.note(1, 1)
    late.settle({1: 0}.__getitem__)
    assert late.num_dropped == counters.value("gradients_dropped") == 3


def test_without_backup_workers_nothing_is_late() -> None:
    counters = Counters()
    late = LateGradients(0, counters)
    late.note(0, 5)
    late.settle({0: 4}.__getitem__)
    assert not counters.value("gradients_dropped")

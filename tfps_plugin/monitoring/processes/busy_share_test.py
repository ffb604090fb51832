import threading

import pytest

from tfps_plugin.monitoring.processes import busy_share
from tfps_plugin.monitoring.processes.busy_share import BusyShare


def test_a_slice_counts_as_far_as_it_computes() -> None:
    assert busy_share.share_of([(0.004, 0.004), (0.0, 0.004)]) == 0.5
    assert busy_share.share_of([(0.001, 0.004)]) == 0.25


def test_several_processors_in_one_slice_are_one_busy_slice() -> None:
    # Four threads for a quarter of the time: as much processor time as one
    # thread all the time.
    slices = [(0.016, 0.004)] + 3 * [(0.0, 0.004)]
    assert busy_share.share_of(slices) == 0.25


def test_no_slices_are_no_share() -> None:
    assert busy_share.share_of([]) == 0.0


def test_the_share_is_a_mean_of_the_latest_bursts() -> None:
    now = taken = 0.0
    is_busy = True

    def clock() -> float:
        nonlocal now, taken
        now += 0.004
        taken += 0.004 * is_busy
        return now

    share = BusyShare(clock, lambda: taken)
    stopped = threading.Event()
    assert share.measure(stopped) == pytest.approx(1.0)
    is_busy = False
    assert share.measure(stopped) == pytest.approx(0.5)
    for _ in range(5):
        last = share.measure(stopped)
    assert last == 0.0


def test_a_stop_ends_the_look() -> None:
    stopped = threading.Event()
    stopped.set()
    assert BusyShare().measure(stopped) == 0.0

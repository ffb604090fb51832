"""Tests of writes that need copies on the parameter servers."""

import threading

from tfps_plugin.variables.chief.pending_writes import PendingWrites

_SECONDS = 20.0


def test_a_write_is_waited_for() -> None:
    writes = PendingWrites()
    assert writes.wait(0.0)
    found: list[bool] = []
    end = writes.begin()
    assert not writes.wait(0.0)
    waiting = threading.Thread(
        target=lambda: found.append(writes.wait(_SECONDS))
    )
    waiting.start()
    assert not found
    end()
    waiting.join(_SECONDS)
    assert found == [True]


def test_an_end_counts_once() -> None:
    writes = PendingWrites()
    end, end_of_other = writes.begin(), writes.begin()
    end()
    end()
    assert not writes.wait(0.0)
    end_of_other()
    assert writes.wait(0.0)

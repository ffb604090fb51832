"""Copies that parameter servers hold of one another."""

import time
from typing import Any

import pytest

import tfps_plugin as tfps
from tfps_plugin.recovery import failover

_DEADLINE_SECONDS = 60.0


def copies_of(strategy: tfps.ParameterServerStrategy) -> Any:
    """Returns the copies, to update them at once."""
    known = failover.of(strategy)
    assert known is not None
    return known._standby


def wait_for_copies(strategy: tfps.ParameterServerStrategy) -> None:
    """Waits for the copies that are made after the first steps."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not copies_of(strategy).parts():
        assert time.monotonic() < deadline


def let_tables_be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies small tables by rows, in several slices."""
    for name, value in {
        "incremental.row_marks.SMALLEST_TABLE_BYTES": 1000,
        "transfers.SLICE_BYTES": 3000,
        "directory_copy.SLICE_BYTES": 3000,
    }.items():
        monkeypatch.setattr(f"tfps_plugin.recovery.{name}", value)

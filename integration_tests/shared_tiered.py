"""Helpers of tests of tables on the disks of parameter servers."""

import threading
import time
from collections.abc import Iterable
from typing import Any

import keras

from tfps_plugin.variables.storage import on_disk

_LIMIT_SECONDS = 60.0


def wait_for_limits(variable: keras.Variable, share: float) -> int:
    """Waits until rows of a table have left memory, and rows of its slots.

    Args:
        variable: The table; each of its shards has more than 32 MB.
        share: The share of it that stays in memory.

    Returns:
        The number of pages that lookups have read.
    """
    width = variable.shape[1]
    regions = [
        each
        for shard in variable.value.shards
        for each in (shard, *shard.family)
        # A small one may stay in memory.
        if tuple(each.shape)[1] == width
    ]
    return wait_for_regions(regions, share)


def wait_for_regions(regions: Iterable[Any], share: float) -> int:
    """Waits until rows of some variables have left memory.

    Args:
        regions: Variables on disk, of more than 32 MB.
        share: The share of them that stays in memory.

    Returns:
        The number of pages that lookups have read.
    """
    deadline = time.monotonic() + _LIMIT_SECONDS
    read = 0
    for each in regions:
        while True:
            whole, resident, num_read = on_disk.counts(each, each.on_disk)
            assert whole > 32e6
            if resident <= share * whole:
                break
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
        read += num_read
    return read

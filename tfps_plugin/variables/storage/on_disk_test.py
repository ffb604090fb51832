"""Tests of variables on disk that need no cluster."""

import types

import pytest

from tfps_plugin.variables.storage import on_disk
from tfps_plugin.variables.storage.on_disk import OnDisk
from tfps_plugin.variables.storage.tiered_storage import TieredStorage


@pytest.mark.parametrize(
    ("place", "expected"),
    [(None, 4_000), (OnDisk(TieredStorage(25), 100), 1_000)],
)
def test_bytes_in_memory(place: OnDisk | None, expected: int) -> None:
    variable = types.SimpleNamespace(on_disk=place)
    assert on_disk.bytes_in_memory(variable, 4_000) == expected


def test_a_variable_that_knows_no_disk_is_in_memory() -> None:
    assert on_disk.bytes_in_memory(object(), 4_000) == 4_000

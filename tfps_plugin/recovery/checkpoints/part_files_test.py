"""Tests of the threads that work on the parts of parameter servers."""

import types
from collections.abc import Sequence
from typing import Any

import pytest

from tfps_plugin._compat.runtime import tensorflow_functions
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import Part


def _parts() -> list[Part]:
    devices: list[Any] = [
        types.SimpleNamespace(device=f"/job:ps/task:{index}")
        for index in range(2)
    ]
    return [Part("x", each, 0, (1,)) for each in devices]


@pytest.mark.parametrize("asks_nobody", [True, False])
def test_threads_ask_tasks_if_their_caller_would(asks_nobody: bool) -> None:
    def asks(device: str, own: Sequence[Part]) -> bool:
        return tensorflow_functions.asks_nobody()

    def on_all() -> dict[str, bool]:
        return part_files.on_every_device(_parts(), asks)

    if asks_nobody:
        with tensorflow_functions.asking_nobody():
            found = on_all()
    else:
        found = on_all()
    assert list(found.values()) == [asks_nobody] * 2

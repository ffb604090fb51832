"""Tests of variables on disk that need no cluster."""

import types
from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster.mapped_memory import disk_functions
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


def _used(
    variable: Any, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[tf.Tensor]]:
    """Returns the result of memory that is alone or not, and what was tried."""
    monkeypatch.setattr(on_disk, "_ALONE_BYTES", 1_000)
    monkeypatch.setattr(on_disk, "_MOST_HELD", 3)
    tried: list[tf.Tensor] = []

    def use(value: tf.Tensor) -> int:
        tried.append(value)
        return answers[len(tried) - 1]

    done, last = on_disk._until_alone(variable, use)
    assert last is tried[-1]
    return done, tried


def _variable(num_rows: int) -> Any:
    return types.SimpleNamespace(
        shape=tf.TensorShape([num_rows, 4]),
        dtype=tf.float32,
        device="/device:CPU:0",
        name="rows",
    )


@pytest.mark.parametrize(
    ("num_rows", "answers", "num_tried"),
    [
        (100, [7], 1),
        (100, [disk_functions.SHARED, disk_functions.SHARED, 7], 3),
        # May stay in memory: it is small.
        (10, [disk_functions.SHARED], 1),
    ],
)
def test_large_memory_is_tried_until_it_is_alone(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    num_rows: int,
    answers: list[int],
    num_tried: int,
) -> None:
    done, tried = _used(_variable(num_rows), answers, monkeypatch)
    assert done == answers[-1]
    assert [each.shape for each in tried] == num_tried * [(num_rows, 4)]
    assert not caplog.records


def test_memory_that_is_never_alone_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = 5 * [disk_functions.SHARED]
    with pytest.raises(
        errors.VariableCreationError, match=r"'rows'.*num_bytes=1600.*ONEDNN"
    ):
        _used(_variable(100), answers, monkeypatch)

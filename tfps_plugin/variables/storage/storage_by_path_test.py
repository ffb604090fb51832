"""Tests of the storage of variables by their paths."""

import logging
import re
from typing import Any

import pytest

from tfps_plugin import errors
from tfps_plugin.variables.storage.storage_by_path import StorageByPath
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

_FIRST, _SECOND = TieredStorage(10), TieredStorage(20)
_SHAPE = (100, 4)


def test_keys_are_searched_in_paths() -> None:
    storages = StorageByPath({"items/embed": _FIRST, "^users/.*s$": _SECOND})
    assert storages.of("items/embeddings", _SHAPE) is _FIRST
    assert storages.of("model/items/embeddings", _SHAPE) is _FIRST
    assert storages.of("users/embeddings", _SHAPE) is _SECOND
    assert storages.of("model/users/embeddings", _SHAPE) is None
    assert storages.of("dense/kernel", _SHAPE) is None
    assert StorageByPath().of("items/embeddings", _SHAPE) is None


def test_a_whole_path_comes_first() -> None:
    storages = StorageByPath(
        {"items/embeddings": _FIRST, "embeddings": _SECOND}
    )
    assert storages.of("items/embeddings", _SHAPE) is _FIRST
    with pytest.raises(
        errors.VariableCreationError,
        match=r"'old_items/embeddings'.*\['items/embeddings', 'embeddings'\]",
    ):
        storages.of("old_items/embeddings", _SHAPE)


@pytest.mark.parametrize(
    ("shape", "has_numbers"), [((), True), (_SHAPE, False)]
)
def test_a_variable_without_rows_of_numbers_is_refused(
    shape: Any, has_numbers: bool
) -> None:
    storages = StorageByPath({"items": _FIRST})
    assert storages.of("others/scale", shape, has_numbers=has_numbers) is None
    with pytest.raises(
        errors.VariableCreationError,
        match=f"'items/scale'.*key 'items', shape={re.escape(str(shape))}",
    ):
        storages.of("items/scale", shape, has_numbers=has_numbers)


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ("items", TypeError, "mapping.*table_storage='items'"),
        ([("items", _FIRST)], TypeError, "mapping"),
        ({3: _FIRST}, TypeError, "must map strings.*Received: 3"),
        ({"items": 10}, TypeError, "Received: 'items': 10"),
        ({"items(": _FIRST}, ValueError, r"Received: 'items\('.*Python says"),
        ({"": _FIRST}, ValueError, "must not be empty"),
    ],
)
def test_other_options_are_refused(
    option: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        StorageByPath(option)


def test_unused_keys_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    storages = StorageByPath({"item/embedding$": _FIRST, "users": _SECOND})
    storages.of("users/embeddings", _SHAPE)
    storages.of("items/embeddings", _SHAPE)
    storages.of("items/bias", _SHAPE[:1])
    with caplog.at_level(logging.WARNING, "tfps_plugin.variables"):
        storages.tell_of_unused()
        storages.tell_of_unused()
    (record,) = caplog.records
    assert "'item/embedding$'" in record.getMessage()
    assert "['items/embeddings']" in record.getMessage()

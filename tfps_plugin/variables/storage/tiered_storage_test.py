import pathlib
from typing import Any

import pytest

import tfps_plugin as tfps


@pytest.mark.parametrize("memory_rows", [0, -3, 1.5, True, "many"])
def test_wrong_numbers_of_rows_are_refused(memory_rows: Any) -> None:
    with pytest.raises(ValueError, match=r"positive integer.*\. Give"):
        tfps.TieredStorage(memory_rows)


@pytest.mark.parametrize("directory", ["rows", "./rows", b"/rows", 3])
def test_wrong_directories_are_refused(directory: Any) -> None:
    with pytest.raises(ValueError, match=r"absolute path.*\. Leave"):
        tfps.TieredStorage(10, directory)


def test_a_path_is_a_directory() -> None:
    storage = tfps.TieredStorage(10, pathlib.Path("/rows"))  # type: ignore
    assert storage.directory == storage.folder == "/rows"
    assert tfps.TieredStorage(**storage.get_config()) == storage


def test_the_share_in_memory() -> None:
    storage = tfps.TieredStorage(10)
    assert storage.folder == ""
    assert storage.share_in_memory(100) == 0.1
    assert storage.share_in_memory(5) == 1.0

"""Tests of the folder of checkpoints."""

import pathlib

import pytest

from tfps_plugin.recovery.checkpoints.checkpoint_folder import CheckpointFolder
from tfps_plugin.recovery.checkpoints.retention import Retention


def _add(folder: CheckpointFolder, number: int, full: int) -> None:
    """Makes a checkpoint appear; an increment of `full`, if that is another."""
    prefix = folder.full_prefix(number)
    if full != number:
        prefix = folder.increment_prefix(folder.full_prefix(full), number)
    index = pathlib.Path(prefix + ".index")
    index.parent.mkdir(exist_ok=True)
    index.touch()
    folder.written(prefix, number, score=None)


def _open(path: pathlib.Path, max_to_keep: int | None = 2) -> CheckpointFolder:
    return CheckpointFolder(str(path), "ckpt", Retention(max_to_keep))


# The last is called as the folders of increments are.
@pytest.mark.parametrize("name", ["plain", "with/", "ckpt-7.increments"])
def test_a_chain_goes_as_a_whole(tmp_path: pathlib.Path, name: str) -> None:
    folder = CheckpointFolder(f"{tmp_path}/{name}", "ckpt", Retention(2))
    kept = []
    for number, full in [(1, 1), (2, 1), (3, 3), (4, 3), (5, 5)]:
        _add(folder, number, full)
        kept.append(list(folder.prefixes()))
    assert kept == [[1], [1, 2], [1, 2, 3], [3, 4], [3, 4, 5]]
    assert not pathlib.Path(tmp_path, name, "ckpt-1.increments").exists()


def test_what_takes_the_place_of_a_full_one_has_no_increments(
    tmp_path: pathlib.Path,
) -> None:
    folder = _open(tmp_path, None)
    for number, full in [(1, 1), (2, 1), (1, 1)]:
        _add(folder, number, full)
    assert list(folder.prefixes()) == [1]


def test_increments_without_their_full_one_are_removed(
    tmp_path: pathlib.Path,
) -> None:
    folder = _open(tmp_path)
    for number in (1, 2):
        _add(folder, number, 1)
    (tmp_path / "ckpt-1.index").unlink()
    assert not _open(tmp_path).prefixes()
    assert not (tmp_path / "ckpt-1.increments").exists()


def test_what_has_lost_its_index_is_known(tmp_path: pathlib.Path) -> None:
    folder = _open(tmp_path, None)
    for number, full in [(1, 1), (2, 1)]:
        _add(folder, number, full)
    for path in (
        "ckpt-1.data-00000-of-00001",
        "ckpt-3.data-00000-of-00002",
        "ckpt-3.data-00001-of-00002",
        "ckpt-1.increments/ckpt-4.data-00000-of-00001",
        "ckpt-5.data",
    ):
        (tmp_path / path).touch()
    assert folder.without_index() == [
        str(tmp_path / "ckpt-1.increments" / "ckpt-4"),
        str(tmp_path / "ckpt-3"),
    ]

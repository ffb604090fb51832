"""Tests of arrays of this process that are moved to files."""

import os
import pathlib
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from tfps_plugin.cluster.mapped_memory import page_calls
from tfps_plugin.cluster.mapped_memory import tensor_memory
from tfps_plugin.cluster.mapped_memory.mapped_region import MappedRegion
from tfps_plugin.cluster.mapped_memory.region_board import RegionBoard

# Larger than 32 MB: the C library maps it by itself.
_ROWS, _WIDTH = 200_000, 48
_LIMIT = 0.1


def _array() -> np.ndarray:
    return np.empty((_ROWS, _WIDTH), np.float32)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def _forget(board: RegionBoard) -> None:
    """Lets the thread of a board end, before its arrays do."""
    with board._lock:
        for name in list(board._regions):
            board._regions.pop(name).close()
    _wait_until(lambda: board._thread is None)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "rows")


def test_an_array_keeps_what_is_written_to_it(folder: str) -> None:
    board = RegionBoard()
    array = _array()
    assert tensor_memory.is_mapping_of_its_own(array.ctypes.data, array.nbytes)
    region = board.add("rows", array, folder, _LIMIT)
    assert not os.listdir(folder)
    assert not array.any()
    truth = np.random.default_rng(1).normal(size=array.shape).astype("float32")
    array[:] = truth
    _wait_until(lambda: region.num_resident_pages() <= region.most_pages)
    assert region.most_pages <= 0.1 * array.nbytes / page_calls.PAGE_BYTES
    rows = np.arange(0, _ROWS, 997)
    board.bring(["rows", "gone"], rows)
    assert 0 < region.num_read <= 2 * len(rows)
    np.testing.assert_array_equal(array[rows], truth[rows])
    array[rows] += 1.0
    truth[rows] += 1.0
    copied = _array()
    board.copy("rows", board.add("copy", copied, folder, _LIMIT))
    np.testing.assert_array_equal(copied, truth)
    array[:] = 0.0
    np.testing.assert_array_equal(copied, truth)
    _forget(board)


def test_a_region_is_forgotten_with_its_array(folder: str) -> None:
    board = RegionBoard()
    array = _array()
    board.add("rows", array, folder, _LIMIT)
    assert "rows" in board
    del array
    _wait_until(lambda: "rows" not in board)
    _wait_until(lambda: board._thread is None)


def test_limits_are_kept_after_a_look_that_failed(
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = RegionBoard()
    array = _array()
    has_failed = threading.Event()

    def failing() -> None:
        monkeypatch.undo()
        has_failed.set()
        raise RuntimeError("no look")

    monkeypatch.setattr(page_calls, "inodes_in_use", failing)
    region = board.add("rows", array, folder, _LIMIT)
    array[:] = 1.0
    assert has_failed.wait(30.0)
    _wait_until(lambda: region.num_resident_pages() <= region.most_pages)
    assert "no look" in caplog.text
    _forget(board)


def test_frequent_rows_stay_in_memory(folder: str) -> None:
    array = _array()
    region = MappedRegion(array, folder, _LIMIT)
    random = np.random.default_rng(2)
    hot = np.arange(100)
    for now in range(1, 40):
        cold = random.integers(1000, _ROWS, 500)
        rows = np.concatenate([hot, cold])
        region.bring(rows, now)
        array[rows] += 1.0
        region.keep_limit(now, waits=True)
        assert region.num_resident_pages() <= region.most_pages
    before = region.num_read
    region.bring(hot, 40)
    assert region.num_read == before
    np.testing.assert_array_equal(array[hot], 39.0)
    region.close()


@pytest.mark.parametrize("shifts", [(0, 64), (192, 128), (64, 64)])
def test_a_copy_leaves_the_original_on_the_disk(
    folder: str, shifts: tuple[int, int]
) -> None:
    # Rows that begin at other places of their pages, as of TensorFlow.
    raw = [np.empty(4 * _ROWS * _WIDTH + 8192, np.uint8) for _ in shifts]
    array, copied = (
        each[shift:][: 4 * _ROWS * _WIDTH]
        .view(np.float32)
        .reshape(_ROWS, _WIDTH)
        for each, shift in zip(raw, shifts, strict=True)
    )
    region, other = (
        MappedRegion(each, folder, _LIMIT) for each in (array, copied)
    )
    truth = np.random.default_rng(3).normal(size=array.shape).astype("float32")
    array[:] = truth
    region.keep_limit(1, waits=True)
    # What is in memory alone is copied, too.
    array[7], truth[7] = 7.0, 7.0
    region.copy_to(other, 2)
    # Before anything looks at the memory. The system drops a page that it is
    # just handling later.
    some = other.most_pages // 10
    assert region.num_resident_pages() <= region.most_pages + some
    assert other.num_resident_pages() <= other.most_pages + some
    np.testing.assert_array_equal(copied, truth)
    np.testing.assert_array_equal(array, truth)
    for each in (region, other):
        each.close()


@pytest.mark.parametrize("is_allowed", [True, False])
def test_lookups_make_room_for_what_they_bring(
    folder: str, monkeypatch: pytest.MonkeyPatch, is_allowed: bool
) -> None:
    """Nothing looks at the memory meanwhile, as `keep_limit` would."""
    if not is_allowed:

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "pidfd_open", refuse)
    array = _array()
    region = MappedRegion(array, folder, _LIMIT)
    random = np.random.default_rng(3)
    counts = np.zeros(_ROWS, np.float32)
    for now in range(1, 60):
        rows = np.unique(random.integers(0, _ROWS, 150))
        region.bring(rows, now)
        array[rows] += 1.0
        counts[rows] += 1.0
        # A row may be in two pages.
        assert region.num_resident_pages() <= region.most_pages + 2 * len(rows)
    assert region.num_read > 2 * region.most_pages
    np.testing.assert_array_equal(array, np.tile(counts[:, None], _WIDTH))
    region.close()


def test_a_mark_is_in_the_array(folder: str) -> None:
    array = _array()
    region = MappedRegion(array, folder, _LIMIT)
    row = region.row_to_mark
    region.mark()
    assert array[row].any()
    assert not array[:row].any()
    region.close()


def test_a_directory_in_memory_is_refused() -> None:
    if not page_calls.is_in_memory("/dev/shm"):
        pytest.skip("/dev/shm is not in memory here")
    with pytest.raises(OSError, match="itself in memory"):
        MappedRegion(_array(), "/dev/shm", _LIMIT)


def test_a_disk_without_room_is_refused(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    array = _array()
    array[5] = 7.0
    with pytest.raises(OSError, match="No space left"):
        MappedRegion(array, folder, _LIMIT)
    assert (array[5] == 7.0).all()

"""Tests of flights_records.py."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from flights_data import IDS
from flights_data import NUMBERS
from flights_features import WIDE
from flights_features import Features
from flights_records import FILES
from flights_records import read_records
from flights_records import steps_in
from flights_records import write_records

_ROWS = 3 * FILES


@pytest.fixture
def features(tmp_path: pathlib.Path) -> Features:
    """Writes distinct flights as "train", and returns their features."""
    row = np.arange(_ROWS, dtype=np.int32)
    thirds = row.astype(np.float32) / 3
    written: Features = {
        **dict.fromkeys(IDS, row),
        "wide": np.stack([row + 2**20] * len(WIDE), axis=1),
        "numbers": np.stack([thirds] * len(NUMBERS), axis=1),
    }
    write_records(tmp_path, "train", written, (row % 2).astype(np.float32))
    return written


def _context(workers: int, worker: int) -> tf.distribute.InputContext:
    return tf.distribute.InputContext(
        num_input_pipelines=workers, input_pipeline_id=worker
    )


def test_what_is_read_is_what_was_written(
    tmp_path: pathlib.Path, features: Features
) -> None:
    dataset = read_records(tmp_path, "train", _ROWS, _context(1, 0))
    read, late = next(dataset.as_numpy_iterator())
    order = np.argsort(read["flight"])
    assert set(read) == set(features)
    for name, values in features.items():
        np.testing.assert_array_equal(read[name][order], values)
        assert read[name].dtype == values.dtype
    assert late.shape == (_ROWS, 1)
    np.testing.assert_array_equal(late[order, 0], features["flight"] % 2)


@pytest.mark.usefixtures("features")
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_shares_of_all_workers_are_all_flights_once(
    tmp_path: pathlib.Path, workers: int
) -> None:
    seen: list[int] = []
    for worker in range(workers):
        share = len(range(worker, FILES, workers)) * _ROWS // FILES
        dataset = read_records(
            tmp_path, "train", share, _context(workers, worker), shuffle=True
        )
        features, _ = next(dataset.as_numpy_iterator())
        seen.extend(features["flight"].tolist())
    assert sorted(seen) == list(range(_ROWS))


@pytest.mark.usefixtures("features")
def test_input_never_ends_and_each_round_has_another_order(
    tmp_path: pathlib.Path,
) -> None:
    dataset = read_records(
        tmp_path, "train", _ROWS, _context(1, 0), shuffle=True
    )
    first, second = (
        features["flight"].tolist()
        for features, _ in dataset.take(2).as_numpy_iterator()
    )
    assert sorted(first) == sorted(second)
    assert first != second


@pytest.mark.usefixtures("features")
def test_batches_have_static_shapes(tmp_path: pathlib.Path) -> None:
    features, late = read_records(
        tmp_path, "train", 8, _context(1, 0)
    ).element_spec
    assert features["flight"].shape == (8,)
    assert features["wide"].shape == (8, len(WIDE))
    assert features["numbers"].shape == (8, len(NUMBERS))
    assert late.shape == (8, 1)


def test_more_workers_than_files_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="too few for 33 workers"):
        read_records(tmp_path, "train", 8, _context(FILES + 1, 0))


@pytest.mark.parametrize(("rows", "steps"), [(10, 1), (512, 1), (1535, 2)])
def test_an_epoch_is_about_one_round(rows: int, steps: int) -> None:
    assert steps_in(rows, batch_size=512) == steps

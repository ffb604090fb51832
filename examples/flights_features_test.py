"""Tests of flights_features.py."""

import pathlib

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from flights_data import IDS
from flights_data import NUMBERS
from flights_features import FILES
from flights_features import RECORD_BYTES
from flights_features import WIDE
from flights_features import Encoder
from flights_features import Features
from flights_features import Vocabulary
from flights_features import decode
from flights_features import write_files

_ROWS = 20


def _flights(word: str = "a", number: float = 0.0) -> pd.DataFrame:
    """Returns flights of two kinds, half of each."""
    words = [word, f"{word}{word}"] * (_ROWS // 2)
    return pd.DataFrame(
        {
            **dict.fromkeys(IDS, words),
            **dict.fromkeys(NUMBERS, number + np.arange(_ROWS, dtype="f4")),
        }
    )


def test_rare_and_unseen_words_share_id_zero() -> None:
    seen = pd.Series(["b"] * 5 + ["a"] * 6 + ["rare"] * 4)
    vocabulary = Vocabulary.learn(seen)
    assert vocabulary.words == ("a", "b")
    assert vocabulary.size == 3
    asked = pd.Series(["a", "b", "rare", "new"])
    assert list(vocabulary.ids(asked)) == [1, 2, 0, 0]


def test_names_shapes_and_types() -> None:
    flights = _flights()
    features = Encoder.learn(flights).encode(flights)
    assert set(features) == {*IDS, "wide", "numbers"}
    for name in IDS:
        assert features[name].shape == (_ROWS,)
        assert features[name].dtype == np.int32
    assert features["wide"].shape == (_ROWS, len(WIDE))
    assert features["wide"].dtype == np.int32
    assert features["numbers"].shape == (_ROWS, len(NUMBERS))
    assert features["numbers"].dtype == np.float32


def test_ids_fit_the_tables() -> None:
    flights = _flights()
    encoder = Encoder.learn(flights)
    features = encoder.encode(flights)
    assert list(encoder.table_sizes) == list(IDS)
    for name, size in encoder.table_sizes.items():
        assert features[name].max() < size
    assert features["wide"].max() < encoder.wide_size


def test_no_two_wide_columns_share_an_id() -> None:
    encoder = Encoder.learn(_flights())
    wide = np.concatenate(
        [
            encoder.encode(_flights("a"))["wide"],
            encoder.encode(_flights("new"))["wide"],
        ]
    )
    ids = [set(column) for column in wide.T]
    assert sum(len(one) for one in ids) == len(set.union(*ids))
    assert all(len(one) == 3 for one in ids)


def test_numbers_are_scaled_as_in_training() -> None:
    encoder = Encoder.learn(_flights())
    seen = encoder.encode(_flights())["numbers"]
    assert seen.mean() == pytest.approx(0, abs=1e-6)
    assert seen.std() == pytest.approx(1)
    # Other months have other means, and the model should see the difference.
    later = encoder.encode(_flights(number=3.0))["numbers"]
    assert later.mean() == pytest.approx(3 / np.arange(_ROWS).std())


def test_numbers_are_finite_whatever_comes() -> None:
    flights = _flights()
    constant = NUMBERS[0]
    flights[constant] = 7.0
    encoder = Encoder.learn(flights)
    flights.loc[0, NUMBERS[1]] = np.nan
    flights.loc[1, NUMBERS[1]] = 1e9
    numbers = encoder.encode(flights)["numbers"]
    assert np.isfinite(numbers).all()
    assert (numbers[:, 0] == 0).all()
    assert numbers[0, 1] == 0
    assert numbers[1, 1] == 5


def test_what_workers_read_is_what_was_written(tmp_path: pathlib.Path) -> None:
    row = np.arange(3 * FILES, dtype=np.int32)
    thirds = row.astype(np.float32) / 3
    features: Features = {
        **dict.fromkeys(IDS, row),
        "wide": np.stack([row + 2**20] * len(WIDE), axis=1),
        "numbers": np.stack([thirds] * len(NUMBERS), axis=1),
    }
    files = write_files(tmp_path, features, (row % 2).astype(np.float32))
    records = tf.data.FixedLengthRecordDataset(files, RECORD_BYTES)
    dataset = records.batch(len(row)).map(decode)
    read, late = next(dataset.as_numpy_iterator())
    order = np.argsort(read["flight"])
    assert set(read) == set(features)
    for name, values in features.items():
        np.testing.assert_array_equal(read[name][order], values)
        assert read[name].dtype == values.dtype
    np.testing.assert_array_equal(late[order, 0], row % 2)
    assert dataset.element_spec[0]["wide"].shape[1] == len(WIDE)

"""Features of the model: integer ids of words, and scaled numbers.

Everything that is learned from data here (vocabularies, the scales of numbers)
is learned from the training months only. Workers read the features from files
of records: a record is one flight, a fixed number of float32 values with the
label first. They include ids: float32 is exact for integers up to 2**24.
"""

import dataclasses
import os
import pathlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
import tensorflow as tf
from flights_data import IDS
from flights_data import NUMBERS
from flights_data import describe_flights
from flights_data import part
from flights_data import read_tables

Features: TypeAlias = dict[str, npt.NDArray[np.generic]]
"""Input name -> one row for each flight."""

CROSSES = (
    ("carrier", "destination"),
    ("carrier", "hour"),
    ("origin", "destination"),
    ("origin", "hour", "weekday"),
    ("destination", "hour"),
)
"""Words that mean more together than each alone."""

WIDE = (*((name,) for name in IDS), *CROSSES)
"""Columns of the wide part: each word alone, then the crosses."""

FILES = 32
"""Files that flights are written into: as many workers can share them."""

_COLUMNS = {"late": 1, **dict.fromkeys(IDS, 1)}
_COLUMNS |= {"wide": len(WIDE), "numbers": len(NUMBERS)}
RECORD_BYTES = sum(_COLUMNS.values()) * np.dtype(np.float32).itemsize
_MINIMUM_COUNT = 5
_FARTHEST = 5.0


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Words and their ids, from 1. Id 0 is every other word."""

    words: tuple[str, ...]

    @classmethod
    def learn(cls, column: pd.Series) -> "Vocabulary":
        """Takes the words that are not rare, so that 0 is learned as well."""
        counts = column.value_counts()
        return cls(tuple(sorted(counts.index[counts >= _MINIMUM_COUNT])))

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.words) + 1

    def ids(self, column: pd.Series) -> npt.NDArray[np.int32]:
        """Returns the id of each word."""
        known = pd.Series(range(1, self.size), index=self.words)
        return column.map(known).fillna(0).to_numpy(np.int32)


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Turns described flights into features.

    Attributes:
        vocabularies: Vocabularies of the columns of `WIDE`, of which the first
            ones are `IDS`.
        means: Means of `NUMBERS`.
        deviations: Standard deviations of `NUMBERS`.
    """

    vocabularies: tuple[Vocabulary, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @classmethod
    def learn(cls, training_flights: pd.DataFrame) -> "Encoder":
        """Learns vocabularies and scales from the training months."""
        numbers = training_flights[list(NUMBERS)].astype(np.float64)
        deviations = numbers.std(ddof=0)
        return cls(
            vocabularies=tuple(
                Vocabulary.learn(_together(training_flights, columns))
                for columns in WIDE
            ),
            means=tuple(numbers.mean()),
            # A number that never varies has no information: it becomes 0.
            deviations=tuple(deviations.where(deviations > 0, np.inf)),
        )

    @property
    def table_sizes(self) -> dict[str, int]:
        """Number of ids of each column of `IDS`."""
        return {
            name: vocabulary.size
            for name, vocabulary in zip(IDS, self.vocabularies, strict=False)
        }

    @property
    def wide_size(self) -> int:
        """Number of ids of all columns of the wide part together."""
        return sum(vocabulary.size for vocabulary in self.vocabularies)

    def encode(self, flights: pd.DataFrame) -> Features:
        """Encodes flights of any month.

        Returns:
            One int32 vector for each name of `IDS`; `wide`, an int32 matrix in
            which no two columns share an id; `numbers`, a float32 matrix in
            which 0 is the mean, and stands for NaN.
        """
        columns = [
            vocabulary.ids(_together(flights, columns))
            for vocabulary, columns in zip(self.vocabularies, WIDE, strict=True)
        ]
        sizes = [vocabulary.size for vocabulary in self.vocabularies]
        first_ids = np.cumsum([0, *sizes[:-1]])
        numbers = flights[list(NUMBERS)].to_numpy(np.float64)
        numbers = (numbers - self.means) / self.deviations
        numbers = np.nan_to_num(np.clip(numbers, -_FARTHEST, _FARTHEST))
        return {
            **dict(zip(IDS, columns, strict=False)),
            "wide": (np.stack(columns, axis=1) + first_ids).astype(np.int32),
            "numbers": numbers.astype(np.float32),
        }


@dataclasses.dataclass(frozen=True)
class Training:
    """The months to train on, in files.

    Attributes:
        encoder: Encoder, learned from them.
        files: Names of the files.
        rows: Number of flights.
        share_late: Share of late flights.
    """

    encoder: Encoder
    files: list[str]
    rows: int
    share_late: float


@dataclasses.dataclass(frozen=True)
class Test:
    """The months to test on, in memory.

    Attributes:
        features: Their features.
        late: 1.0 for late flights, 0.0 for others.
        rows: Number of flights.
    """

    features: Features
    late: npt.NDArray[np.float32]
    rows: int


def prepare(folder: pathlib.Path) -> tuple[Training, Test]:
    """Reads and encodes the flights, and writes files for the workers.

    Args:
        folder: Folder for the files; on several machines, one that all see.
    """
    flights = describe_flights(read_tables())
    train, test = part(flights, "train"), part(flights, "test")
    encoder = Encoder.learn(train)
    late = train["late"].to_numpy()
    files = write_files(folder, encoder.encode(train), late)
    return (
        Training(encoder, files, len(train), float(late.mean())),
        Test(encoder.encode(test), test["late"].to_numpy(), len(test)),
    )


def write_files(
    folder: pathlib.Path, features: Features, late: npt.NDArray[np.float32]
) -> list[str]:
    """Writes flights in random order: each file is a sample of all months.

    Returns:
        Names of the files.
    """
    columns = {"late": late, **features}
    table = np.concatenate(
        [
            columns[name].reshape(len(late), width).astype("<f4")
            for name, width in _COLUMNS.items()
        ],
        axis=1,
    )
    table = table[np.random.default_rng(seed=2013).permutation(len(table))]
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(folder / f"{number:02d}.records") for number in range(FILES)]
    for file, rows in zip(files, np.array_split(table, FILES), strict=True):
        # If the job was started again, workers may still read the old file.
        rows.tofile(file + ".new")
        os.replace(file + ".new", file)
    return files


def decode(records: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Decodes a batch of records, on the worker that reads them.

    Returns:
        The features, in the form of `Encoder.encode`, and the labels.
    """
    table = tf.io.decode_raw(records, tf.float32)
    # The static shape lets Keras and XLA know the number of columns.
    table = tf.ensure_shape(table, [None, sum(_COLUMNS.values())])
    columns = tf.split(table, list(_COLUMNS.values()), axis=1)
    features = dict(zip(_COLUMNS, columns, strict=True))
    late = features.pop("late")
    for name in IDS:
        features[name] = tf.cast(features[name][:, 0], tf.int32)
    features["wide"] = tf.cast(features["wide"], tf.int32)
    return features, late


def _together(flights: pd.DataFrame, columns: tuple[str, ...]) -> pd.Series:
    first, *others = (flights[name] for name in columns)
    return first.str.cat(others, sep=" | ") if others else first

"""Features of the model: integer ids of words, and scaled numbers.

Everything that is learned from data here (vocabularies, the scales of numbers)
is learned from the training months only.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from flights_data import IDS
from flights_data import NUMBERS

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

    def save(self, path: pathlib.Path) -> None:
        """Writes it as JSON: users of the model need the same ids."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def load(cls, path: pathlib.Path) -> "Encoder":
        """Reads a file of `save`."""
        content: Mapping[str, list[Any]] = json.loads(path.read_text())
        return cls(
            vocabularies=tuple(
                Vocabulary(tuple(vocabulary["words"]))
                for vocabulary in content["vocabularies"]
            ),
            means=tuple(content["means"]),
            deviations=tuple(content["deviations"]),
        )


def _together(flights: pd.DataFrame, columns: tuple[str, ...]) -> pd.Series:
    first, *others = (flights[name] for name in columns)
    return first.str.cat(others, sep=" | ") if others else first

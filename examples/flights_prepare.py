"""Preparation of the flights for `fit`: encodes them, and writes files."""

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from flights_data import PARTS
from flights_data import describe_flights
from flights_data import part
from flights_data import read_tables
from flights_features import Encoder
from flights_features import Features
from flights_records import write_records
from flights_report import say


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The flights, ready for training and test.

    Attributes:
        encoder: Encoder, learned from the training months.
        rows: Number of flights in each part.
        base_rate: Share of late flights in the training months.
        test_features: The flights of the test months.
        test_late: Labels of the test months: 1.0 for late flights.
    """

    encoder: Encoder
    rows: Mapping[str, int]
    base_rate: float
    test_features: Features
    test_late: npt.NDArray[np.float32]


def prepare(data_dir: pathlib.Path) -> Prepared:
    """Reads and encodes the flights, and writes files for the workers.

    Args:
        data_dir: Folder for the files of the training and validation months.
    """
    say("Reading the flights that left New York in 2013.")
    tables = read_tables()
    flights = describe_flights(tables)
    parts = {name: part(flights, name) for name in PARTS}
    train, validation, test = parts.values()
    say(
        f"{len(tables.flights):,} flights, "
        f"{len(tables.flights) - len(flights):,} of them cancelled or "
        "diverted: left out.\n"
        f"To train on, January to September:  {len(train):>7,}\n"
        f"To validate on, October:            {len(validation):>7,}\n"
        f"To test on, November and December:  {len(test):>7,}"
    )
    encoder = Encoder.learn(train)
    for name in ("train", "validation"):
        late = parts[name]["late"].to_numpy()
        write_records(data_dir, name, encoder.encode(parts[name]), late)
    return Prepared(
        encoder=encoder,
        rows={name: len(rows) for name, rows in parts.items()},
        base_rate=float(train["late"].mean()),
        test_features=encoder.encode(test),
        test_late=test["late"].to_numpy(),
    )

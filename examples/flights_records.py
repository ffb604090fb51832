"""Features in files, so that each worker reads its own share.

A record is one flight: a fixed number of float32 values, the label first. They
include ids: float32 is exact for integers up to 2**24.
"""

import os
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from flights_data import IDS
from flights_data import NUMBERS
from flights_features import WIDE
from flights_features import Features

FILES = 32
"""Files that a part is written into: as many workers can share it."""

_COLUMNS = {"late": 1, **dict.fromkeys(IDS, 1)}
_COLUMNS |= {"wide": len(WIDE), "numbers": len(NUMBERS)}
_RECORD_BYTES = sum(_COLUMNS.values()) * np.dtype(np.float32).itemsize
_SHUFFLED_TOGETHER = 16_384


def record_paths(folder: pathlib.Path, part: str) -> list[str]:
    """Returns the files of a part."""
    return [
        str(folder / f"{part}-{number:02d}-of-{FILES}.records")
        for number in range(FILES)
    ]


def write_records(
    folder: pathlib.Path,
    part: str,
    features: Features,
    late: npt.NDArray[np.float32],
) -> None:
    """Writes a part in random order: each file is a sample of all months."""
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
    paths = record_paths(folder, part)
    for path, rows in zip(paths, np.array_split(table, FILES), strict=True):
        # If the job was started again, workers may still read the old file.
        rows.tofile(path + ".new")
        os.replace(path + ".new", path)


def read_records(
    folder: pathlib.Path,
    part: str,
    batch_size: int,
    context: tf.distribute.InputContext,
    *,
    shuffle: bool = False,
) -> tf.data.Dataset:
    """Reads one worker's share of a part, endlessly.

    Args:
        folder: Folder of the files, under the same name on every machine.
        part: "train" or "validation".
        batch_size: Flights in a batch.
        context: Index of the worker, and number of workers.
        shuffle: Whether to shuffle in each pass.

    Returns:
        Endless batches of (features, label).

    Raises:
        ValueError: If there are more workers than files.
    """
    workers, worker = context.num_input_pipelines, context.input_pipeline_id
    if workers > FILES:
        raise ValueError(
            f"A part is in {FILES} files, too few for {workers} workers: "
            "raise FILES in flights_records.py"
        )
    records = tf.data.FixedLengthRecordDataset(
        record_paths(folder, part)[worker::workers], _RECORD_BYTES
    )
    if shuffle:
        records = records.shuffle(_SHUFFLED_TOGETHER)
    # Decode a batch at a time: decoding single records would cost more than the
    # training.
    return (
        records.repeat()
        .batch(batch_size, drop_remainder=True)
        .map(_decode)
        .prefetch(tf.data.AUTOTUNE)
    )


def _decode(records: Any) -> tuple[dict[str, Any], Any]:
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


def steps_in(rows: int, batch_size: int) -> int:
    """Returns the number of batches in about one pass over the flights."""
    return max(1, rows // batch_size)

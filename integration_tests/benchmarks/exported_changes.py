"""Measures exports of the few rows that have changed in a large table.

    python -m integration_tests.benchmarks.exported_changes --gigabytes 2

Exports a table of two parameter servers whole, trains on one row in a hundred,
and exports the changes, several times. A reader in another process follows.
Prints the seconds and bytes of each export, and the seconds that the reader
takes for it.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

_TABLE = "items"
_READER = """
import sys, time
from tfps_plugin import serving
tables = None
for line in sys.stdin:
    began_at = time.perf_counter()
    if tables is None:
        tables = serving.Tables(sys.argv[1])
    else:
        assert tables.refresh() is not None
    seconds = time.perf_counter() - began_at
    row = tables["items"].lookup([int(line)])[0, 0]
    print(seconds, row, flush=True)
"""


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--percent", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8192)
    options = parser.parse_args()
    num_rows = int(options.gigabytes * 1e9 / 4 / options.width)
    num_changed = int(num_rows * options.percent / 100)
    random = np.random.default_rng(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        tfps.LocalCluster(num_workers=1, num_ps=2) as cluster,
        _reader(folder) as reader,
    ):
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((1,), dtype="int64"),
                    keras.layers.Embedding(
                        num_rows, options.width, name=_TABLE
                    ),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile(keras.optimizers.SGD(0.1), "mse")
        model.build((None, 1))
        _export(model, folder, "base", reader, 0)
        seconds = []
        for _ in range(options.rounds):
            ids = random.choice(num_rows, num_changed, replace=False)
            model.fit(
                tf.data.Dataset.from_tensor_slices(
                    (ids[:, None], np.ones([num_changed, 1], "f"))
                ).batch(options.batch),
                verbose=0,
            )
            seconds.append(
                _export(
                    model,
                    folder,
                    f"{num_changed} of {num_rows} rows",
                    reader,
                    int(ids[0]),
                )
            )
    print(
        f"changes: {statistics.median(seconds):.2f} s "
        f"({min(seconds):.2f} to {max(seconds):.2f})"
    )


def _export(model: Any, folder: str, name: str, reader: Any, row: int) -> float:
    """Exports, lets the reader follow, and prints the figures."""
    before = _bytes(folder)
    began_at = time.perf_counter()
    tfps.export_changes(model, folder)
    seconds = time.perf_counter() - began_at
    reader.stdin.write(f"{row}\n")
    reader.stdin.flush()
    read_seconds, value = map(float, reader.stdout.readline().split())
    expected = float(model.get_layer(_TABLE)(np.array([[row]]))[0, 0, 0])
    if abs(value - expected) > 1e-6:
        raise ValueError(f"The reader has {value}, not {expected}.")
    print(
        f"{name}: {seconds:.2f} s, {(_bytes(folder) - before) / 1e6:.1f} MB; "
        f"read in {read_seconds:.2f} s",
        flush=True,
    )
    return seconds


def _reader(folder: str) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", _READER, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _bytes(folder: str) -> int:
    return sum(
        each.stat().st_size
        for each in pathlib.Path(folder).rglob("*")
        if each.is_file()
    )


if __name__ == "__main__":
    main()

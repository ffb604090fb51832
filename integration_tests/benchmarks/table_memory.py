"""Measures the memory of the chief and each ps for a table and its slots.

    python -m integration_tests.benchmarks.table_memory [--mebibytes 2048]

Creates a model with an Embedding of that size and Adam, trains it by `fit`,
saves it with `save_weights` to a temporary file and loads it again, on one
worker and two ps. Prints for each phase the chief's resident memory over what
it had before, afterwards and at its peak, in MiB. For each ps: resident memory
afterwards and at its peak; the part of it that is its own, without the pages
of TensorFlow's libraries that all processes of a machine share; and resident
and own memory afterwards as multiples of the bytes of its shards, slots
included.

Needs five times the table's size in memory and three times on the disk.
"""

import argparse
import gc
import math
import os
import pathlib
import tempfile
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

_WIDTH = 16
_MEBIBYTE = 1 << 20
_BATCH = 512
_FIELDS = 26


class _Process:
    """Resident memory of a process, in MiB."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self._folder = pathlib.Path(f"/proc/{pid}")

    def forget_peak(self) -> None:
        """Makes the kernel count the peak from now on."""
        (self._folder / "clear_refs").write_text("5")

    def resident(self) -> float:
        """Returns the current resident memory."""
        return self._field("VmRSS")

    def own(self) -> float:
        """Returns the current resident memory, without pages of files."""
        return self._field("RssAnon")

    def peak(self) -> float:
        """Returns the peak since `forget_peak`."""
        return self._field("VmHWM")

    def _field(self, name: str) -> float:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(f"{self._folder}/status has no line {name}")


class _Phases:
    """Measures phases, and prints a line for each."""

    def __init__(self, chief: _Process, servers: list[_Process]) -> None:
        self._chief = chief
        self._servers = servers
        gc.collect()
        self._baseline = chief.resident()
        columns = "".join(
            f" |{server.name:>5}:{'now':>6}{'peak':>7}{'own':>7}"
            f"{'now/shards':>12}{'own/shards':>12}"
            for server in servers
        )
        print(f"{'':9}{'s':>6} | chief:{'now':>5}{'peak':>6}{columns}")

    def run(self, name: str, phase: Any, shards: Any) -> Any:
        """Runs a phase.

        Args:
            name: Name to print.
            phase: Function to run.
            shards: Returns the MiB of each ps's shards after the phase.
        """
        for process in (self._chief, *self._servers):
            process.forget_peak()
        start = time.perf_counter()
        result = phase()
        seconds = time.perf_counter() - start
        line = (
            f"{name:9}{seconds:6.1f} |"
            f"{self._chief.resident() - self._baseline:+12,.0f}"
            f"{self._chief.peak() - self._baseline:+6,.0f}"
        )
        for server, size in zip(self._servers, shards(), strict=True):
            now, own = server.resident(), server.own()
            line += f" |{now:12,.0f}{server.peak():7,.0f}{own:7,.0f}"
            line += f"{now / size:12.2f}{own / size:12.2f}"
        print(line, flush=True)
        return result


def _dataset(rows: int) -> Any:
    def make(context: Any = None) -> tf.data.Dataset:
        random = np.random.default_rng(3)
        ids = random.integers(0, rows, (8 * _BATCH, _FIELDS), np.int32)
        targets = np.ones((8 * _BATCH, 1), "float32")
        return (
            tf.data.Dataset.from_tensor_slices((ids, targets))
            .batch(_BATCH)
            .repeat()
        )

    return tfps.DatasetCreator(make)


def _model(rows: int) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((_FIELDS,), dtype="int32"),
            keras.layers.Embedding(rows, _WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(), "binary_crossentropy")
    model.optimizer.build(model.trainable_variables)
    return model


def _shard_mebibytes(model: keras.Model) -> list[float]:
    """Returns the MiB of a model's variables on each ps."""
    sizes = [0.0, 0.0]
    for variable in [*model.variables, *model.optimizer.variables]:
        value = variable.value
        for shard in getattr(value, "variables", [value]):
            if "/job:ps" in shard.device:
                ps = tf.DeviceSpec.from_string(shard.device).task
                elements = math.prod(shard.shape.as_list())
                sizes[ps] += elements * shard.dtype.size / _MEBIBYTE
    return sizes


def main() -> None:
    """Runs all phases once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    rows = options.mebibytes * _MEBIBYTE // (4 * _WIDTH)
    print(
        f"table of {rows:,} x {_WIDTH} float32 ({options.mebibytes} MiB), "
        f"Adam; 1 worker, 2 ps; load {os.getloadavg()[0]:.1f}\n"
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        tfps.LocalCluster(num_workers=1, num_ps=2) as cluster,
    ):
        path = pathlib.Path(folder, "model.weights.h5")
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )

        def make(number: int) -> keras.Model:
            with strategy.scope():
                return _model(number)

        def train(model: keras.Model, number: int) -> None:
            model.fit(
                _dataset(number), steps_per_epoch=options.steps, verbose=0
            )

        # Modules that load at first use are not part of the table's memory.
        small = make(1000)
        train(small, 1000)
        small.save_weights(path)
        small.load_weights(path)
        path.unlink()
        del small
        phases = _Phases(
            _Process("chief", os.getpid()),
            [
                _Process(f"ps {i}", cluster.process("ps", i).pid)
                for i in range(2)
            ],
        )
        made: list[keras.Model] = []

        def sizes() -> list[float]:
            return _shard_mebibytes(made[0]) if made else [math.inf] * 2

        phases.run("before", lambda: None, sizes)
        phases.run("create", lambda: made.append(make(rows)), sizes)
        (model,) = made
        phases.run("train", lambda: train(model, rows), sizes)
        phases.run("save", lambda: model.save_weights(path), sizes)
        on_disk = path.stat().st_size / _MEBIBYTE
        phases.run("load", lambda: model.load_weights(path), sizes)
        phases.run("train on", lambda: train(model, rows), sizes)
        phases.run("at rest", gc.collect, sizes)
        print(
            f"\nshards of each ps, with slots: "
            f"{', '.join(f'{size:,.0f} MiB' for size in sizes())}; "
            f"file: {on_disk:,.0f} MiB; load {os.getloadavg()[0]:.1f}"
        )
        tfps.ClusterCoordinator(strategy).close()


if __name__ == "__main__":
    main()

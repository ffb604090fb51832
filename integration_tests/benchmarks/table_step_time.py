"""Does the time of a step depend on the size of the table?

    python -m integration_tests.benchmarks.table_step_time

Trains by `fit` on tables of 10 thousand, 1 million and 20 million rows of 16,
with Adam, Adagrad and SGD, batches of 512 x 26 random ids, on one worker and
two ps. The models of one optimizer live in the same cluster and take turns,
round by round, so that what else the machine does falls on all. Prints the
median and the range of the rounds' milliseconds per step, CPU milliseconds per
step of all processes together, and the ratio of the largest to the smallest.

The smaller the table, the fewer distinct ids a batch of random ids has, so
fewer rows travel. Therefore each table is also trained on only 10 thousand
ids, spread over the table, for the same number of distinct rows.

For comparison, Keras runs a few steps in one process: there, each step costs
the whole table.
"""

import argparse
import gc
import multiprocessing
import os
import statistics
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from .processes import cpu_seconds

_WIDTH = 16
_BATCH = 512
_FIELDS = 26
_SIZES = (10_000, 1_000_000, 20_000_000)
_OPTIMIZERS = ("Adam", "Adagrad", "SGD")
# Number of different ids; None for as many as rows.
_KINDS = {"any rows": None, "10,000 of them": 10_000}
_STEPS_ALONE = {10_000: 30, 1_000_000: 6, 20_000_000: 2}


def _ids(rows: int, different: int | None, batch: Any) -> tf.Tensor:
    """Returns the ids of a batch; no two batches are alike."""
    limit = different or rows
    drawn = tf.random.stateless_uniform(
        [_BATCH, _FIELDS], [7, batch], maxval=limit, dtype=tf.int32
    )
    return drawn * (rows // limit)


def _dataset(rows: int, different: int | None) -> tf.data.Dataset:
    targets = tf.ones([_BATCH, 1])
    return (
        tf.data.Dataset.counter(dtype=tf.int32)
        .map(lambda batch: (_ids(rows, different, batch), targets))
        .prefetch(4)
    )


def creator(rows: int, different: int | None) -> tfps.DatasetCreator:
    """Creates batches of `different` distinct ids; None for all rows."""
    return tfps.DatasetCreator(lambda context: _dataset(rows, different))


def make_model(optimizer: str, rows: int) -> keras.Model:
    """Returns a compiled model of one table."""
    model = keras.Sequential(
        [
            keras.Input((_FIELDS,), dtype="int32"),
            keras.layers.Embedding(rows, _WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        getattr(keras.optimizers, optimizer)(0.01), "binary_crossentropy"
    )
    return model


class _SecondEpoch(keras.callbacks.Callback):
    """Times the second epoch: the first has traced and warmed up."""

    def __init__(self, processes: list[int]) -> None:
        super().__init__()
        self._processes = processes
        self.seconds = 0.0
        self.cpu_seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._start = time.perf_counter()
        self._cpu_start = cpu_seconds(self._processes)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.seconds = time.perf_counter() - self._start
        self.cpu_seconds = cpu_seconds(self._processes) - self._cpu_start


def milliseconds(
    model: keras.Model, data: Any, steps: int, processes: list[int]
) -> tuple[float, float]:
    """Returns wall and CPU milliseconds per step, while `fit` runs."""
    timer = _SecondEpoch(processes)
    model.fit(
        data, epochs=2, steps_per_epoch=steps, callbacks=[timer], verbose=0
    )
    return 1e3 * timer.seconds / steps, 1e3 * timer.cpu_seconds / steps


def _alone(optimizer: str, sizes: list[int]) -> dict[int, tuple[float, float]]:
    found = {}
    for rows in sizes:
        found[rows] = milliseconds(
            make_model(optimizer, rows),
            _dataset(rows, None),
            _STEPS_ALONE.get(rows, 2),
            [os.getpid()],
        )
        gc.collect()
    return found


def _distinct(rows: int, different: int | None) -> int:
    return len(np.unique(_ids(rows, different, 0)))


def _print(name: str, found: list[tuple[float, float]], rest: str) -> None:
    times = [milliseconds for milliseconds, _ in found]
    cpu = statistics.median(cpu for _, cpu in found)
    spread = f"{min(times):,.1f} to {max(times):,.1f}"
    print(
        f"{name:44}{statistics.median(times):9,.1f}{spread:>20}{cpu:10,.1f}"
        f"{rest}",
        flush=True,
    )


def _on_cluster(
    optimizer: str,
    sizes: list[int],
    rounds: int,
    steps: int,
    strategy: tfps.ParameterServerStrategy,
    processes: list[int],
) -> None:
    models = {}
    for rows in sizes:
        with strategy.scope():
            models[rows] = make_model(optimizer, rows)
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number in range(rounds + 1):
        for kind, different in _KINDS.items():
            for rows, model in models.items():
                data = creator(rows, different)
                one = milliseconds(model, data, steps, processes)
                # The first round is to warm up.
                if number:
                    found.setdefault((kind, rows), []).append(one)
    for kind, different in _KINDS.items():
        for rows in sizes:
            _print(
                f"{optimizer}, {rows:,} rows, {kind}",
                found[kind, rows],
                f"{_distinct(rows, different):10,}",
            )
        ratios = [
            large / small
            for (large, _), (small, _) in zip(
                found[kind, max(sizes)], found[kind, min(sizes)], strict=True
            )
        ]
        medians = [
            statistics.median(one for one, _ in found[kind, rows])
            for rows in (max(sizes), min(sizes))
        ]
        print(
            f"    largest to smallest: {medians[0] / medians[1]:.2f}; in "
            f"neighbouring rounds {min(ratios):.2f} to {max(ratios):.2f}",
            flush=True,
        )


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--rows", type=int, nargs="+", default=list(_SIZES))
    parser.add_argument("--optimizers", nargs="+", default=list(_OPTIMIZERS))
    parser.add_argument("--no-keras", action="store_true")
    options = parser.parse_args()
    print(
        f"batches of {_BATCH} x {_FIELDS} ids, width {_WIDTH}; load "
        f"{os.getloadavg()[0]:.1f}\n\n"
        f"{'':44}{'ms/step':>9}{'range':>20}{'CPU ms':>10}{'distinct':>10}"
    )
    for optimizer in [] if options.no_keras else options.optimizers:
        # Use a separate process, whose memory is freed at its end.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            alone = pool.apply(_alone, (optimizer, options.rows))
        for rows, one in alone.items():
            _print(f"Keras in one process, {optimizer}, {rows:,}", [one], "")
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        processes = [
            os.getpid(),
            *(
                cluster.process(job, index).pid
                for job, index in (("worker", 0), ("ps", 0), ("ps", 1))
            ),
        ]
        for optimizer in options.optimizers:
            _on_cluster(
                optimizer,
                options.rows,
                options.rounds,
                options.steps,
                strategy,
                processes,
            )
            gc.collect()
        tfps.ClusterCoordinator(strategy).close()
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

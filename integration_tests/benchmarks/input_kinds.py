"""Measures the cost of input that the chief reads, instead of the workers.

    python -m integration_tests.benchmarks.input_kinds

Trains one model on the same rows, given in several ways, in turns within one
run, and prints the steps per second of each (median and range over the
rounds), its ratio to the first, and the CPU seconds of all processes for a
thousand steps.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from .processes import cpu_seconds

_ROWS = 100_000
_FEATURES = 26


def _data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, _ROWS, (rows, _FEATURES)).astype("int64")
    return ids, (ids[:, :1] % 2).astype("float32")


def _model(strategy: Any) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((_FEATURES,), dtype="int64"),
                keras.layers.Embedding(_ROWS, 16),
                keras.layers.Flatten(),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile("adagrad", "binary_crossentropy", metrics=["accuracy"])
    return model


def _inputs(
    ids: np.ndarray, labels: np.ndarray, batch: int
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Returns arguments of `fit` for each kind of input."""
    steps = len(ids) // batch

    def share(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return (
            tf.data.Dataset.from_tensor_slices((ids, labels))
            .shard(context.num_input_pipelines, context.input_pipeline_id)
            .batch(batch)
        )

    def endless(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return share(context).repeat()

    def split(number: tf.Tensor) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((ids, labels))
        per_split = len(ids) // 20
        return data.skip(number * per_split).take(per_split).batch(batch)

    return {
        "DatasetCreator, steps": lambda: {
            "x": tfps.DatasetCreator(endless),
            "steps_per_epoch": steps,
        },
        "DatasetCreator, no steps": lambda: {"x": tfps.DatasetCreator(share)},
        "DatasetCreator, 20 splits": lambda: {
            "x": tfps.DatasetCreator(split, splits=range(20))
        },
        "tf.data.Dataset": lambda: {
            "x": tf.data.Dataset.from_tensor_slices((ids, labels)).batch(batch)
        },
        "arrays": lambda: {"x": ids, "y": labels, "batch_size": batch},
    }


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=256)
    arguments = parser.parse_args()
    ids, labels = _data(arguments.batches * arguments.batch_size)
    inputs = _inputs(ids, labels, arguments.batch_size)
    rates: dict[str, list[float]] = {name: [] for name in inputs}
    cpu: dict[str, list[float]] = {name: [] for name in inputs}
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
        model = _model(strategy)
        processes = [
            os.getpid(),
            *(
                cluster.process(job, index).pid
                for job in ("worker", "ps")
                for index in range(2)
            ),
        ]
        for number in range(arguments.rounds + 1):
            for name, make in inputs.items():
                times: list[float] = []
                clock = keras.callbacks.LambdaCallback(
                    on_epoch_begin=lambda *_, t=times: t.append(
                        time.perf_counter()
                    ),
                    on_epoch_end=lambda *_, t=times: t.append(
                        time.perf_counter()
                    ),
                )
                before = cpu_seconds(processes)
                # Time the second epoch: the first makes pipelines and traces.
                model.fit(**make(), epochs=2, verbose=0, callbacks=[clock])
                used = cpu_seconds(processes) - before
                if number:
                    rates[name].append(
                        arguments.batches / (times[3] - times[2])
                    )
                    cpu[name].append(used * 1000 / (2 * arguments.batches))
        tfps.ClusterCoordinator(strategy).close()
    first = statistics.median(next(iter(rates.values())))
    for name in inputs:
        middle = statistics.median(rates[name])
        print(
            f"{name:26} {middle:7.1f} steps/s "
            f"({min(rates[name]):.1f}..{max(rates[name]):.1f})  "
            f"x{middle / first:.2f}  "
            f"{statistics.median(cpu[name]):6.2f} CPU s / 1000 steps"
        )


if __name__ == "__main__":
    main()

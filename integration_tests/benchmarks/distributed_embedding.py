"""Compares one DistributedEmbedding to one Embedding for each table.

    python -m integration_tests.benchmarks.distributed_embedding

Trains a small model on 26 tables of 100,000 x 16 by `fit`, batches of 512, on
two workers and two ps: once with 26 `keras.layers.Embedding`, once with one
`tfps.layers.DistributedEmbedding`. Both live in the same cluster and take
turns, round by round, so that what else the machine does falls on both. Prints
the median and the range of the rounds' steps per second, the median and the
range of the ratio of neighbouring rounds, how many values travel between tasks
in a step, and in how many messages.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from . import workloads

_TABLES = 26
_ROWS = 100_000
_WIDTH = 16
_BATCH = 512
_BATCHES = 8


def _dataset(context: Any = None) -> tf.data.Dataset:
    random = np.random.default_rng(3)
    # As usual for ids, a few are frequent, and most are rare.
    ids = random.zipf(1.2, (_BATCHES * _BATCH, _TABLES)) % _ROWS
    targets = random.integers(0, 2, (_BATCHES * _BATCH, 1))
    features = {f"c{i}": ids[:, i].astype("int32") for i in range(_TABLES)}
    return (
        tf.data.Dataset.from_tensor_slices(
            (features, targets.astype("float32"))
        )
        .batch(_BATCH)
        .cache()
        .repeat()
        .prefetch(2)
    )


def _separate(inputs: dict[str, Any]) -> list[Any]:
    return [
        keras.layers.Embedding(_ROWS, _WIDTH)(inputs[name]) for name in inputs
    ]


def _distributed(inputs: dict[str, Any]) -> list[Any]:
    return workloads.joint_rows(inputs, dict.fromkeys(inputs, _ROWS))


def _model(embed: Callable[[dict[str, Any]], list[Any]]) -> keras.Model:
    inputs = {
        f"c{i}": keras.Input((), dtype="int32", name=f"c{i}")
        for i in range(_TABLES)
    }
    x = keras.layers.Concatenate()(embed(inputs))
    x = keras.layers.Dense(64, activation="relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(x))
    model.compile(keras.optimizers.Adagrad(0.05), "binary_crossentropy")
    return model


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--shards", type=int, default=2)
    options = parser.parse_args()
    kinds = {
        f"{_TABLES} Embedding layers": _separate,
        "one DistributedEmbedding": _distributed,
    }
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    travels = {}
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(options.shards),
        )
        data = tfps.DatasetCreator(_dataset)
        models = {}
        for name, embed in kinds.items():
            with strategy.scope():
                models[name] = _model(embed)
            # This traces, and fills caches.
            models[name].fit(data, steps_per_epoch=20, verbose=0)
            bodies = strategy.explain(models[name], print_fn=None).bodies
            travels[name] = (
                sum(body.num_crossings for body in bodies),
                sum(body.num_parcels for body in bodies),
            )
        for _ in range(options.rounds):
            for name, model in models.items():
                start = time.perf_counter()
                model.fit(data, steps_per_epoch=options.steps, verbose=0)
                rates[name].append(
                    options.steps / (time.perf_counter() - start)
                )
        tfps.ClusterCoordinator(strategy).close()
    print(
        f"{_TABLES} tables of {_ROWS:,} x {_WIDTH}, batches of {_BATCH}, "
        f"Adagrad; 2 workers, 2 ps, {options.shards} shards; "
        f"{options.rounds} rounds of {options.steps} steps each\n"
    )
    print(f"{'':26}{'steps/s':>9}{'range':>16}{'values':>9}{'messages':>10}")
    for name, found in rates.items():
        print(
            f"{name:26}{statistics.median(found):9.1f}"
            f"{f'{min(found):.1f} to {max(found):.1f}':>16}"
            f"{travels[name][0]:9}{travels[name][1]:10}"
        )
    ratios = [b / a for a, b in zip(*rates.values(), strict=True)]
    print(
        f"faster by a factor of {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()

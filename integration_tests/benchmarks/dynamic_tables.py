"""Measures what a table without a vocabulary costs, beside a fixed one.

    python -m integration_tests.benchmarks.dynamic_tables --rows 1000000

Trains the same model on the same ids with two workers and two parameter
servers, in turns: with `keras.layers.Embedding`, and with
`tfps.layers.DynamicEmbedding` that has met all ids before. Prints steps per
second, the CPU milliseconds of all processes for a step, and ratios round by
round; the memory of the parameter servers for each; and of the first pass,
which makes the rows, the usual and the longest time between the ends of two
calls. With `--torchrec`, TorchRec takes its turns, too (see
`torchrec_dynamic_peer`). With `--many-tables`, each id of an example has a
table of its own, with its part of the rows, and all are stacked in a
`tfps.layers.DistributedEmbedding`, with vocabularies or without.
"""

import argparse
import contextlib
import os
import statistics
import time
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from . import processes
from . import torchrec_dynamic_peer

_STEPS_A_CALL = 10
# Two workers trace, twice each.
_FIRST_CALLS = 8


class _Figures(NamedTuple):
    steps_per_second: float
    cpu_milliseconds: float


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--ids", type=int, default=26, help="of an example")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torchrec", action="store_true")
    parser.add_argument("--many-tables", action="store_true")
    options = parser.parse_args()
    with (
        tfps.LocalCluster(num_workers=2, num_ps=2) as cluster,
        contextlib.ExitStack() as stack,
    ):
        pids = processes.with_descendants(os.getpid())
        models = {}
        for kind in ("fixed", "dynamic"):
            before = _ps_bytes(cluster)
            strategy = tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                tfps.partitioners.FixedShardsPartitioner(2),
            )
            with strategy.scope():
                models[kind] = _model(kind, options)
            gaps = _Gaps()
            began_at = time.perf_counter()
            models[kind].fit(
                tfps.DatasetCreator(lambda context: _all_ids(context, options)),
                steps_per_epoch=-(
                    -options.rows // (options.batch * options.ids)
                ),
                verbose=0,
                callbacks=[gaps],
            )
            seconds = time.perf_counter() - began_at
            per_row = (_ps_bytes(cluster) - before) / options.rows
            print(
                f"{kind}: first pass over all ids {seconds:.1f} s, "
                f"{per_row:.0f} bytes a row on parameter servers; "
                f"{_STEPS_A_CALL} steps took {gaps.of_share(0.5):.3f} s, "
                f"the slowest {gaps.of_share(1.0):.3f} s",
                flush=True,
            )
        data = tfps.DatasetCreator(
            lambda context: _random_ids(context, options)
        )

        def train(model: Any) -> _Figures:
            cpu_before = processes.cpu_seconds(pids)
            began_at = time.perf_counter()
            model.fit(data, steps_per_epoch=options.steps, verbose=0)
            seconds = time.perf_counter() - began_at
            cpu = processes.cpu_seconds(pids) - cpu_before
            return _Figures(options.steps / seconds, 1e3 * cpu / options.steps)

        if options.torchrec:
            shape = (options.rows, options.width, options.batch, options.ids)
            models["torchrec"] = stack.enter_context(
                torchrec_dynamic_peer.torchrec(*shape)
            )
            pids = processes.with_descendants(os.getpid())
        for model in models.values():
            train(model)
        rounds: dict[str, list[_Figures]] = {kind: [] for kind in models}
        for _ in range(options.rounds):
            for kind, model in models.items():
                rounds[kind].append(train(model))
    for kind, figures in rounds.items():
        print(
            f"{kind}: "
            f"{statistics.median(f.steps_per_second for f in figures):.4g} "
            "steps/s, "
            f"{statistics.median(f.cpu_milliseconds for f in figures):.4g} ms"
        )
    for other in [kind for kind in rounds if kind != "dynamic"]:
        print(
            f"step time, dynamic to {other}:",
            _ratio(rounds, other, "steps_per_second", -1),
        )
        print(
            f"CPU, dynamic to {other}:",
            _ratio(rounds, other, "cpu_milliseconds", 1),
        )


class _Gaps(keras.callbacks.Callback):
    """Seconds between the ends of calls, but for the first, which trace."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._ends.append(time.perf_counter())

    def of_share(self, share: float) -> float:
        """Returns the gap than which this share of gaps is not longer.

        Returns:
            Not a number if there were too few calls.
        """
        gaps = np.diff(self._ends[_FIRST_CALLS:])
        return float(np.quantile(gaps, share)) if gaps.size else float("nan")


def _model(kind: str, options: argparse.Namespace) -> Any:
    inputs = keras.Input((options.ids,), dtype="int64")
    if options.many_tables:
        layer = _many_tables(kind, options)
        columns = [inputs[:, column] for column in range(options.ids)]
        rows = keras.layers.Concatenate()(layer(columns))
    elif kind == "fixed":
        embedding = keras.layers.Embedding(options.rows, options.width)
        rows = keras.layers.Flatten()(embedding(inputs))
    else:
        embedding = tfps.layers.DynamicEmbedding(
            options.width, capacity=options.rows
        )
        rows = keras.layers.Flatten()(embedding(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(rows))
    model.compile(
        keras.optimizers.Adagrad(0.01), "mse", steps_per_execution=_STEPS_A_CALL
    )
    return model


def _many_tables(
    kind: str, options: argparse.Namespace
) -> tfps.layers.DistributedEmbedding:
    num_rows = _rows_of_each(options)
    is_fixed = kind == "fixed"
    tables = [
        tfps.layers.TableConfig(
            f"table{number}",
            vocabulary_size=num_rows if is_fixed else None,
            embedding_dim=options.width,
            capacity=None if is_fixed else num_rows,
        )
        for number in range(options.ids)
    ]
    return tfps.layers.DistributedEmbedding(
        [
            tfps.layers.FeatureConfig(
                table.name, table, (None,), (None, options.width)
            )
            for table in tables
        ]
    )


def _rows_of_each(options: argparse.Namespace) -> int:
    """Returns the number of rows of a table."""
    rows: int = options.rows
    return rows // options.ids if options.many_tables else rows


def _all_ids(
    context: tf.distribute.InputContext, options: argparse.Namespace
) -> tf.data.Dataset:
    """Returns every id once, in no order, a part for each worker."""
    size = options.batch * options.ids
    prime = 1_000_003
    return (
        tf.data.Dataset.range(-(-options.rows // size))
        .shard(context.num_input_pipelines, context.input_pipeline_id)
        .map(
            lambda number: (
                (tf.range(number * size, (number + 1) * size) * prime)
                % options.rows
            )
        )
        .map(lambda ids: _example(ids, options))
        .repeat()
    )


def _random_ids(
    context: tf.distribute.InputContext, options: argparse.Namespace
) -> tf.data.Dataset:
    count = options.batch * options.ids
    return (
        tf.data.Dataset.range(200)
        .map(
            lambda number: tf.random.stateless_uniform(
                [count],
                [number, context.input_pipeline_id],
                maxval=options.rows,
                dtype=tf.int64,
            )
        )
        .map(lambda ids: _example(ids, options))
        .cache()
        .repeat()
    )


def _example(
    ids: tf.Tensor, options: argparse.Namespace
) -> tuple[tf.Tensor, tf.Tensor]:
    ids = tf.reshape(ids, [options.batch, options.ids])
    ids %= _rows_of_each(options)
    return ids, tf.cast(ids[:, :1] % 2, tf.float32)


def _ps_bytes(cluster: tfps.LocalCluster) -> int:
    return sum(
        processes.resident_bytes(cluster.process("ps", index).pid)
        for index in range(2)
    )


def _ratio(
    rounds: dict[str, list[_Figures]], other: str, figure: str, exponent: int
) -> str:
    ratios = [
        (getattr(ours, figure) / getattr(theirs, figure)) ** exponent
        for theirs, ours in zip(rounds[other], rounds["dynamic"], strict=True)
    ]
    return (
        f"{statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()

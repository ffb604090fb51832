"""Measures a table on the disks of parameter servers, beside one in memory.

    python -m integration_tests.benchmarks.tiered_rows --rows 2000000

With `--dlrm` the dense layers are those of MLPerf's DLRM (the upper part of its
model for Criteo's data, whose rows have 128 numbers) instead of two of the
width `--hidden`.

Ids are drawn from a Zipf distribution. The rows of all ids are made in the
order in which such a stream meets them. Then the same model is trained on the
same ids with two workers and two parameter servers, in turns: with all rows in
memory, and with one in ten (`--memory-share`). Prints steps per second, the CPU
milliseconds of all processes for a step, and ratios round by round; of the
table on disk, the largest share that was in memory after a round, and the
pages that steps have read; and for how long a checkpoint of each model stops
training, and how long it takes to be written.

The run fails if more of the table is in memory than the limit and a tenth of
it, or if the processes of the parameter servers grow by more than that, 64
bytes a row for the directory, and 200 MB each for all else.
"""

import argparse
import os
import statistics
import tempfile
import time
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.variables.storage import on_disk

from . import processes

_IMPORTED_AT_ONCE = 200_000
_NUM_BATCHES = 400
# Source: mlcommons/training, recommendation_v2, --arch-mlp-top.
_DLRM_WIDTHS = [1024, 1024, 512, 256]


class _Figures(NamedTuple):
    steps_per_second: float
    cpu_milliseconds: float


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--ids", type=int, default=26, help="of an example")
    layers = parser.add_mutually_exclusive_group()
    layers.add_argument("--hidden", type=int, default=256)
    layers.add_argument("--dlrm", action="store_true")
    parser.add_argument("--exponent", type=float, default=1.05)
    parser.add_argument("--memory-share", type=float, default=0.1)
    parser.add_argument("--directory")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    random = np.random.default_rng(11)
    weights = np.arange(1, options.rows + 1) ** -options.exponent
    # The order of first arrivals of independent streams of these rates.
    met = np.argsort(random.exponential(size=options.rows) / weights)
    chances = np.cumsum(weights) / weights.sum()
    drawn = np.searchsorted(
        chances, random.random((_NUM_BATCHES * options.batch, options.ids))
    )
    drawn = np.minimum(drawn, options.rows - 1)
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        pids = processes.with_descendants(os.getpid())
        models, tables = {}, {}
        for kind in ("memory", "disk"):
            strategy = tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                tfps.partitioners.FixedShardsPartitioner(2),
            )
            before = _ps_bytes(cluster)
            began_at = time.perf_counter()
            with strategy.scope():
                models[kind], tables[kind] = _model(kind, options)
            table = tables[kind]
            for start in range(0, options.rows, _IMPORTED_AT_ONCE):
                ids = met[start : start + _IMPORTED_AT_ONCE]
                table.import_(
                    ids, np.full((len(ids), options.width), 0.01, np.float32)
                )
            print(
                f"{kind}: {options.rows} rows made in "
                f"{time.perf_counter() - began_at:.1f} s; parameter servers "
                f"hold {(_ps_bytes(cluster) - before) / 1e6:.0f} MB more",
                flush=True,
            )
        data = tfps.DatasetCreator(
            lambda context: _batches(context, drawn, options)
        )

        def train(model: Any) -> _Figures:
            cpu_before = processes.cpu_seconds(pids)
            began_at = time.perf_counter()
            model.fit(data, steps_per_epoch=options.steps, verbose=0)
            seconds = time.perf_counter() - began_at
            cpu = processes.cpu_seconds(pids) - cpu_before
            return _Figures(options.steps / seconds, 1e3 * cpu / options.steps)

        for model in models.values():
            train(model)
        rounds: dict[str, list[_Figures]] = {kind: [] for kind in models}
        shares, num_read = [], [_counts(tables["disk"])[2]]
        grown_bytes = []
        for number in range(options.rounds):
            for kind in (*models,) if number % 2 else (*models,)[::-1]:
                rounds[kind].append(train(models[kind]))
                if kind == "disk":
                    whole, resident, read = _counts(tables["disk"])
                    shares.append(resident / whole)
                    num_read.append(read)
                    grown_bytes.append(_ps_bytes(cluster) - before)
        for kind, figures in rounds.items():
            speeds = [each.steps_per_second for each in figures]
            print(
                f"{kind}: {statistics.median(speeds):.4g} "
                f"({min(speeds):.4g} to {max(speeds):.4g}) steps/s, "
                f"{statistics.median(f.cpu_milliseconds for f in figures):.4g}"
                " ms"
            )
        ratios = [
            disk.steps_per_second / memory.steps_per_second
            for disk, memory in zip(
                rounds["disk"], rounds["memory"], strict=True
            )
        ]
        pages = np.diff(num_read) / options.steps
        print(
            f"steps/s, disk to memory: {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}); "
            f"{np.median(pages):.0f} pages read a step; at most "
            f"{100 * max(shares):.1f} % of the table in memory; parameter "
            f"servers {max(grown_bytes) / 1e6:.0f} MB larger than before it, "
            f"the table has {whole / 1e6:.0f} MB"
        )
        most = 1.1 * options.memory_share
        if max(shares) > most or max(grown_bytes) > (
            most * whole + 64 * options.rows + 400e6
        ):
            raise SystemExit("More is in memory than the limit allows.")
        for kind, model in models.items():
            stopped, written = _checkpoint_seconds(model, options.directory)
            print(
                f"{kind}: a checkpoint stops training for {stopped:.2f} s and "
                f"is written after {written:.2f} s"
            )


def _checkpoint_seconds(
    model: Any, directory: str | None
) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        began_at = time.perf_counter()
        pending = tfps.Checkpoint(model=model).snapshot(f"{folder}/model")
        stopped = time.perf_counter() - began_at
        pending.write()
        return stopped, time.perf_counter() - began_at


def _model(kind: str, options: argparse.Namespace) -> tuple[Any, Any]:
    storage = None
    if kind == "disk":
        storage = tfps.TieredStorage(
            int(options.memory_share * options.rows), options.directory
        )
    table = tfps.layers.DynamicEmbedding(
        options.width, capacity=options.rows, storage=storage
    )
    inputs = keras.Input((options.ids,), dtype="int64")
    rows = table(inputs)
    widths = [options.hidden] * 2
    if options.dlrm:
        rows = keras.layers.Dot(2)([rows, rows])
        widths = _DLRM_WIDTHS
    hidden = keras.layers.Flatten()(rows)
    for width in widths:
        hidden = keras.layers.Dense(width, "relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adagrad(0.01), "mse", steps_per_execution=10)
    # The slots are part of the memory that a model takes.
    model.optimizer.build(model.trainable_variables)
    return model, table


def _batches(
    context: tf.distribute.InputContext,
    drawn: np.ndarray,
    options: argparse.Namespace,
) -> tf.data.Dataset:
    ids = drawn[context.input_pipeline_id :: context.num_input_pipelines]
    labels = (ids[:, :1] % 2).astype("float32")
    return (
        tf.data.Dataset.from_tensor_slices((ids, labels))
        .batch(options.batch, drop_remainder=True)
        .repeat()
    )


def _counts(table: Any) -> np.ndarray:
    """Returns bytes, bytes in memory, and pages read, of rows and slots."""
    found = [
        on_disk.counts(each, each.on_disk)
        for shard in table.weights[0].value.variables
        for each in (shard, *shard.family)
    ]
    return np.sum(found, 0)


def _ps_bytes(cluster: tfps.LocalCluster) -> int:
    return sum(
        processes.resident_bytes(cluster.process("ps", index).pid)
        for index in range(2)
    )


if __name__ == "__main__":
    main()

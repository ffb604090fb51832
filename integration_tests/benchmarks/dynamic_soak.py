"""Trains on a stream of new ids for long, and watches the memory.

    python -m integration_tests.benchmarks.dynamic_soak --steps 100000
    python -m integration_tests.benchmarks.dynamic_soak --export exported

A table without a vocabulary has room for some ids; every step brings new ones,
beside some that come all the time, and the least recent rows make room. Prints
the memory of the parameter servers, the worker and the chief at ten points, and
what the table has done. Fails if the parameter servers or the worker have grown
by more than 5 % in the second half; the growth of the chief is printed.

With `--export`, changes are exported while training goes on, and a reader in
another process follows (`export_reader`). At each point, it compares rows with
those of the model, of ids that come all the time and of ids without a row.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from . import processes

_POINTS = 10
_MOST_GROWTH = 0.05
_NUM_KNOWN = 20_000
_WAIT_SECONDS = 120


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--capacity", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--export", metavar="FOLDER")
    parser.add_argument("--export-seconds", type=float, default=10.0)
    options = parser.parse_args()
    callbacks = []
    if options.export is not None:
        callbacks.append(
            tfps.callbacks.ExportChanges(
                options.export, options.export_seconds / 60
            )
        )
    with (
        tfps.LocalCluster(num_workers=1, num_ps=2) as cluster,
        _reader(options.export) as reader,
    ):
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
        )
        with strategy.scope():
            model = _model(options.capacity)
        data = tfps.DatasetCreator(lambda context: _stream(options.batch))
        memory = []
        began_at = time.perf_counter()
        for _ in range(_POINTS):
            model.fit(
                data,
                steps_per_epoch=options.steps // _POINTS,
                verbose=0,
                callbacks=callbacks,
            )
            memory.append(_megabytes(cluster))
            ps, worker, chief = memory[-1]
            layer = model.get_layer("ids")
            done = layer.statistics()
            print(
                f"{time.perf_counter() - began_at:.0f} s: "
                f"ps {ps:.0f} MB, worker {worker:.0f} MB, "
                f"chief {chief:.0f} MB; {layer.size()} rows, "
                f"{done['made']} made, {done['evicted']} evicted, "
                f"{done['without_room']} without room, "
                f"hit rate {done['hit_rate']:.3f}",
                flush=True,
            )
            if reader is not None:
                _ask(reader, model)
    for place, who in enumerate(("parameter servers", "worker", "chief")):
        growth = memory[-1][place] / memory[_POINTS // 2][place] - 1
        print(f"{who}, second half: {growth:+.1%}")
        if growth > _MOST_GROWTH and who != "chief":
            raise SystemExit(f"Grown by more than {_MOST_GROWTH:.0%}: {who}.")


@contextlib.contextmanager
def _reader(folder: str | None) -> Iterator[Any]:
    """Runs a reader of exports; it must not fail."""
    if folder is None:
        yield None
        return
    module = f"{__package__}.export_reader"
    with subprocess.Popen(
        [sys.executable, "-m", module, folder],
        stdin=subprocess.PIPE,
        text=True,
    ) as reader:
        try:
            yield reader
            reader.communicate(timeout=_WAIT_SECONDS)
        finally:
            reader.kill()
    if reader.returncode != 0:
        raise SystemExit("The reader of exports has failed.")


def _ask(reader: Any, model: keras.Model) -> None:
    """Has the reader compare rows with those of the model."""
    # The others are in no batch.
    ids = np.concatenate([np.arange(0, _NUM_KNOWN, 200), np.arange(-20, 0)])
    rows = model.get_layer("ids")(tf.constant(ids), training=False)
    question = {
        "step": int(model.optimizer.iterations),
        "ids": ids.tolist(),
        "rows": rows.numpy().tolist(),
    }
    try:
        reader.stdin.write(json.dumps(question) + "\n")
        reader.stdin.flush()
    except BrokenPipeError:
        raise SystemExit("The reader of exports has failed.") from None


def _model(capacity: int) -> keras.Model:
    inputs = keras.Input((26,), dtype="int64")
    rows = tfps.layers.DynamicEmbedding(
        16,
        capacity=capacity,
        eviction=tfps.layers.Eviction("least_recent"),
        unknown="zeros",
        name="ids",
    )(inputs)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.Adagrad(0.01), "mse", steps_per_execution=10)
    return model


def _stream(batch: int) -> tf.data.Dataset:
    """Returns batches of 13 ids that come all the time, and 13 new ones."""

    def example(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # New in every pass, too.
        now = tf.cast(tf.timestamp() * 1e6, tf.int64)
        new = (now * batch + number % batch) * 13 + tf.range(13, dtype=tf.int64)
        known = tf.random.uniform([13], maxval=_NUM_KNOWN, dtype=tf.int64)
        ids = tf.concat([known, new], 0)
        return ids, tf.cast(known[:1] % 2, tf.float32)

    return tf.data.Dataset.counter().map(example).batch(batch)


def _megabytes(cluster: tfps.LocalCluster) -> tuple[float, float, float]:
    """Returns the memory of parameter servers, worker and chief."""

    def of(*tasks: tuple[str, int]) -> float:
        pids = [cluster.process(*task).pid for task in tasks]
        return sum(map(processes.resident_bytes, pids)) / 1e6

    chief = processes.resident_bytes(os.getpid()) / 1e6
    return of(("ps", 0), ("ps", 1)), of(("worker", 0)), chief


if __name__ == "__main__":
    main()

"""Measures what it saves that workers keep the most looked-up rows.

    python -m integration_tests.benchmarks.cached_rows

Trains a model of 26 tables, those of `dlrm26_zipf`, as one
`DistributedEmbedding` on two workers and two parameter servers, in turns:
without cached rows, and with them. No batch comes twice in a round: the ids of
a table are drawn from a Zipf distribution that ends with the table. Prints
medians and ranges over the rounds: steps per second; the CPU milliseconds of
all processes for a step; the kilobytes that parameter servers (rows and
weights) and workers (ids and gradients) have sent for a step; the hit rate; and
the loss; and each round. Other connections of the machine do not count.
"""

import argparse
import contextlib
import os
import statistics
import time
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

import tfps_plugin as tfps

from . import connections
from . import processes
from . import workloads

_BATCH = 512
# About half of the lookups of a table of millions are of its first thousand
# rows.
_EXPONENT = 1.05


class _Figures(NamedTuple):
    """The figures of one round of steps."""

    steps_per_second: float
    cpu_milliseconds: float
    ps_kilobytes: float
    worker_kilobytes: float
    hit_rate: float
    loss: float


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cache-rows", type=int, default=100_000)
    parser.add_argument("--ages", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--exponent", type=float, default=_EXPONENT)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    kinds: dict[str, dict[str, int]] = {"no cache": {}}
    for age in options.ages:
        kinds[f"age {age}"] = {
            "cache_rows": options.cache_rows,
            "cache_max_age_steps": age,
        }
    rounds: dict[str, list[_Figures]] = {kind: [] for kind in kinds}
    with (
        tfps.LocalCluster(num_workers=2, num_ps=2) as cluster,
        contextlib.ExitStack() as stack,
    ):
        models = {
            kind: _model(cluster, cached, stack)
            for kind, cached in kinds.items()
        }
        data = tfps.DatasetCreator(
            lambda context: _batches(
                options.exponent, context.input_pipeline_id
            )
        )
        for model in models.values():
            model.fit(data, steps_per_epoch=options.steps, verbose=0)
        for _ in range(options.rounds):
            for kind, model in models.items():
                rounds[kind].append(_round(cluster, model, data, options.steps))
                print(f"{kind}: {rounds[kind][-1]}", flush=True)
    for kind, figures in rounds.items():
        print(f"{kind}:", flush=True)
        for name in _Figures._fields:
            print(f"  {name}: {_spread([getattr(f, name) for f in figures])}")


def _model(
    cluster: tfps.LocalCluster,
    cached: dict[str, int],
    stack: contextlib.ExitStack,
) -> Any:
    strategy = tfps.ParameterServerStrategy(
        cluster.cluster_resolver, tfps.partitioners.FixedShardsPartitioner(2)
    )
    stack.callback(lambda: tfps.ClusterCoordinator(strategy).close())
    keras.utils.set_random_seed(7)
    with strategy.scope():
        make = workloads.WORKLOADS["dlrm26_zipf"].joint_model
        assert make is not None
        return make(keras, None, **cached)


def _round(
    cluster: tfps.LocalCluster, model: Any, data: Any, steps: int
) -> _Figures:
    """Trains some steps and measures them."""
    layer = next(
        each
        for each in model.layers
        if isinstance(each, tfps.layers.DistributedEmbedding)
    )
    pids = processes.with_descendants(os.getpid())
    of_job = {
        job: {
            pid
            for index in range(2)
            for pid in processes.with_descendants(
                cluster.process(job, index).pid
            )
        }
        for job in ("ps", "worker")
    }

    def sent() -> list[int]:
        return [connections.sent_bytes(each) for each in of_job.values()]

    lookups = layer.cache_statistics()
    cpu = processes.cpu_seconds(pids)
    before = sent()
    began_at = time.perf_counter()
    history = model.fit(data, steps_per_epoch=steps, verbose=0).history
    seconds = time.perf_counter() - began_at
    from_ps, from_workers = (
        (now - earlier) / 1e3 / steps
        for now, earlier in zip(sent(), before, strict=True)
    )
    cpu = processes.cpu_seconds(pids) - cpu
    lookups_now = layer.cache_statistics()
    asked = lookups_now["asked"] - lookups["asked"]
    hits = lookups_now["hits"] - lookups["hits"]
    return _Figures(
        steps / seconds,
        1e3 * cpu / steps,
        from_ps,
        from_workers,
        hits / max(1, asked),
        history["loss"][-1],
    )


def _batches(exponent: float, worker: int) -> tf.data.Dataset:
    """Returns batches without an end; no two are the same."""
    rows = tf.constant(workloads.CRITEO_ROWS, tf.float64)

    def batch(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # The inverse of the cumulative distribution, of real numbers.
        power = tf.constant(1.0 - exponent, tf.float64)
        last = (rows + 1.0) ** power - 1.0
        random = tf.random.stateless_uniform(
            [_BATCH, rows.shape[0]],
            tf.stack([tf.constant(worker, tf.int64), number]),
            dtype=tf.float64,
        )
        ids = tf.cast((1.0 + random * last) ** (1.0 / power), tf.int64) - 1
        ids = tf.clip_by_value(ids, 0, tf.cast(rows, tf.int64) - 1)
        # What there is to learn: some rows of the largest table.
        labels = tf.cast(ids[:, 2:3] % 3 == 0, tf.float32)
        return ids, labels

    return tf.data.Dataset.range(tf.int64.max).map(batch).prefetch(2)


def _spread(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.4g} ({min(values):.4g} to {max(values):.4g})"


if __name__ == "__main__":
    main()

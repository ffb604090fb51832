"""Measures what it saves that workers keep the most looked-up rows.

    python -m integration_tests.benchmarks.cached_rows

Trains `dlrm26_zipf` with one `DistributedEmbedding` on two workers and two
parameter servers, in turns: without cached rows, and with them. Prints medians
and ranges of steps per second, the CPU milliseconds of all processes and the
bytes of all connections of this machine for a step; the hit rate; and the loss
of each model after the same number of steps. Nothing else may use the loopback
interface meanwhile.
"""

import argparse
import os
import statistics
import time
from typing import Any
from typing import NamedTuple

import keras

import tfps_plugin as tfps

from . import processes
from . import workloads


class _Figures(NamedTuple):
    steps_per_second: float
    cpu_milliseconds: float
    bytes_of_step: float
    loss: float


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cache-rows", type=int, default=100_000)
    parser.add_argument("--ages", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    workload = workloads.WORKLOADS["dlrm26_zipf"]
    kinds: dict[str, dict[str, int]] = {"no cache": {}}
    for age in options.ages:
        kinds[f"age {age}"] = {
            "cache_rows": options.cache_rows,
            "cache_max_age_steps": age,
        }
    rounds: dict[str, list[_Figures]] = {kind: [] for kind in kinds}
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        pids = processes.with_descendants(os.getpid())
        models = {}
        for kind, cached in kinds.items():
            strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)
            keras.utils.set_random_seed(7)
            with strategy.scope():
                models[kind] = workload.joint_model(keras, None, **cached)
        data = tfps.DatasetCreator(workload.dataset)

        def train(model: Any) -> _Figures:
            cpu_before = processes.cpu_seconds(pids)
            bytes_before = processes.loopback_traffic()[0]
            began_at = time.perf_counter()
            history = model.fit(data, steps_per_epoch=options.steps, verbose=0)
            seconds = time.perf_counter() - began_at
            sent = processes.loopback_traffic()[0] - bytes_before
            cpu = processes.cpu_seconds(pids) - cpu_before
            return _Figures(
                options.steps / seconds,
                1e3 * cpu / options.steps,
                sent / options.steps,
                history.history["loss"][-1],
            )

        for model in models.values():
            train(model)
        for _ in range(options.rounds):
            for kind, model in models.items():
                rounds[kind].append(train(model))
        for kind, model in models.items():
            figures = rounds[kind]
            layer = next(
                each
                for each in model.layers
                if isinstance(each, tfps.layers.DistributedEmbedding)
            )
            print(
                f"{kind}: {_spread([f.steps_per_second for f in figures])} "
                f"steps/s, {_spread([f.cpu_milliseconds for f in figures])} "
                "CPU ms, "
                f"{_spread([f.bytes_of_step / 1e3 for f in figures])} kB; "
                f"hit rate {layer.cache_statistics()['hit_rate']:.2f}, "
                f"last loss {figures[-1].loss:.4f}",
                flush=True,
            )


def _spread(values: list[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.4g} ({min(values):.4g} to {max(values):.4g})"


if __name__ == "__main__":
    main()

"""Times a step by what it does to rows that its batch does not contain.

    python -m integration_tests.benchmarks.sparse_updates

Trains one table of 16 columns by `fit`, with every form of `sparse_update`,
batches of 512 x 26 ids, on one worker and two ps. The models live in one
cluster and take turns, round by round. Prints the median and the range of the
rounds' milliseconds per step, CPU milliseconds per step of all processes
together, and the time as a multiple of that of "lazy".
"""

import argparse
import os
import statistics
from typing import get_args

import keras

import tfps_plugin as tfps
from tfps_plugin.strategy.options import SparseUpdate

from . import table_step_time

_ROWS = (10_000, 100_000, 1_000_000)
_OPTIMIZERS = ("Adam", "AdamW", "Adagrad")


def _measure(
    cluster: tfps.LocalCluster, optimizer: str, rows: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    models = {}
    coordinators = []
    for form in get_args(SparseUpdate):
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.FixedShardsPartitioner(2),
            sparse_update=form,
        )
        coordinators.append(tfps.ClusterCoordinator(strategy))
        with strategy.scope():
            models[form] = table_step_time.make_model(optimizer, rows)
    processes = [
        os.getpid(),
        *(
            cluster.process(job, index).pid
            for job, index in (("worker", 0), ("ps", 0), ("ps", 1))
        ),
    ]
    data = table_step_time.creator(rows, None)
    found: dict[str, list[tuple[float, float]]] = {}
    # The first round is to warm up.
    for number in range(rounds + 1):
        for form, model in models.items():
            steps = 10 if form == "exact" and rows >= 1_000_000 else 100
            one = table_step_time.milliseconds(model, data, steps, processes)
            if number:
                found.setdefault(form, []).append(one)
    for coordinator in coordinators:
        coordinator.close()
    keras.backend.clear_session()
    return found


def _print(
    optimizer: str, rows: int, found: dict[str, list[tuple[float, float]]]
) -> None:
    lazy = [milliseconds for milliseconds, _ in found["lazy"]]
    for form, figures in found.items():
        times = [milliseconds for milliseconds, _ in figures]
        cpu = statistics.median(cpu for _, cpu in figures)
        ratios = [one / other for one, other in zip(times, lazy, strict=True)]
        print(
            f"{optimizer:10}{rows:12,}  {form:10}"
            f"{statistics.median(times):9.1f}"
            f"{min(times):9.1f} to {max(times):.1f}"
            f"{cpu:9.1f}"
            f"{statistics.median(ratios):9.2f}"
            f"{min(ratios):9.2f} to {max(ratios):.2f}",
            flush=True,
        )


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=list(_ROWS))
    parser.add_argument("--optimizers", nargs="+", default=list(_OPTIMIZERS))
    options = parser.parse_args()
    print(
        f"load {os.getloadavg()[0]:.1f}\n"
        f"{'optimizer':10}{'rows':>12}  {'form':10}{'ms/step':>9}{'range':>16}"
        f"{'CPU ms':>9}{'to lazy':>9}{'range':>16}"
    )
    with tfps.LocalCluster(num_workers=1, num_ps=2) as cluster:
        for optimizer in options.optimizers:
            for rows in options.rows:
                found = _measure(cluster, optimizer, rows, options.rounds)
                _print(optimizer, rows, found)


if __name__ == "__main__":
    main()

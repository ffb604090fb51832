"""Measures what it costs to watch a job.

    python -m integration_tests.benchmarks.watching

Trains a model with 26 tables on two workers and two parameter servers, epoch
after epoch, in turns: unwatched; watched by a viewer in another process, that
asks twice a second, as `tfps dashboard` does; and with rows that are counted
(`count_rows=True`), unwatched. Prints the steps a second and the CPU
milliseconds of all processes of the job for a step: medians, and ratios round
by round.

Then the job rests. What its processes use now is hardly disturbed by what else
the machine does: prints the CPU milliseconds a second, unwatched and watched.
With `--rounds 0` it prints nothing else.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import keras

import tfps_plugin as tfps

from . import processes
from .workloads import WORKLOADS

_REST_SECONDS = 30.0
_VIEWER = """
import os, sys, threading
from tfps_plugin.monitoring.serving import state_client
client = state_client.of_this_machine(int(sys.argv[1]))
pause = threading.Event()
while True:
    client.state()
    pause.wait(0.5)
"""


class _Figures(NamedTuple):
    steps_per_second: float
    cpu_milliseconds: float


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workload", default="dlrm26", choices=[*WORKLOADS])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    rounds: dict[str, list[_Figures]] = {
        "unwatched": [],
        "watched": [],
        "rows counted": [],
    }
    with tfps.LocalCluster(num_workers=2, num_ps=2) as cluster:
        models = {}
        for counts_rows in (False, True):
            strategy = tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                monitoring=tfps.MonitoringOptions(count_rows=counts_rows),
            )
            with strategy.scope():
                models[counts_rows] = workload.model(keras, None)
        data = tfps.DatasetCreator(workload.dataset)

        # Without the viewer.
        pids = processes.with_descendants(os.getpid())

        def train(model: Any) -> _Figures:
            before = processes.cpu_seconds(pids)
            began_at = time.perf_counter()
            model.fit(data, steps_per_epoch=options.steps, verbose=0)
            seconds = time.perf_counter() - began_at
            cpu = processes.cpu_seconds(pids) - before
            return _Figures(options.steps / seconds, 1e3 * cpu / options.steps)

        for model in models.values():
            train(model)
        for _ in range(options.rounds):
            rounds["unwatched"].append(train(models[False]))
            with _viewer():
                rounds["watched"].append(train(models[False]))
            rounds["rows counted"].append(train(models[True]))
        resting = _cpu_at_rest(pids)
        with _viewer():
            watched = _cpu_at_rest(pids)
    print(
        f"at rest: {1e3 * resting:.3g} CPU ms a second; watched: "
        f"{1e3 * watched:.3g}, so {100 * (watched - resting):.2f} % of a core"
    )
    if not options.rounds:
        return
    first = rounds["unwatched"]
    for name, figures in rounds.items():
        speeds = [
            each.steps_per_second / base.steps_per_second
            for each, base in zip(figures, first, strict=True)
        ]
        costs = [
            each.cpu_milliseconds / base.cpu_milliseconds
            for each, base in zip(figures, first, strict=True)
        ]
        print(
            f"{name}: "
            f"{statistics.median(f.steps_per_second for f in figures):.4g} "
            "steps/s, "
            f"{statistics.median(f.cpu_milliseconds for f in figures):.4g} ms;"
            f" speed {_ratio(speeds)}, CPU {_ratio(costs)}"
        )


def _cpu_at_rest(pids: list[int]) -> float:
    """Returns the CPU seconds that processes use in a second."""
    # The first seconds are those of a viewer that starts.
    for _ in range(2):
        before = processes.cpu_seconds(pids)
        threading.Event().wait(_REST_SECONDS)
        used = processes.cpu_seconds(pids) - before
    return used / _REST_SECONDS


@contextlib.contextmanager
def _viewer() -> Iterator[None]:
    """Lets another process watch this job, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _VIEWER, str(os.getpid())]
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30.0)


def _ratio(ratios: list[float]) -> str:
    middle = statistics.median(ratios)
    return f"{middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    main()

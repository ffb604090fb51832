"""Measures the cost of the coordinator itself, with workers that do nothing.

    python -m integration_tests.benchmarks.coordinator_scale

The workers exist in name only: a scheduled function returns at once. Prints,
for 10, 100 and 1,000 of them, how many functions a second go from `schedule`
to their end (median and range of the rounds), the chief's CPU microseconds for
each, and the threads and the memory that a worker takes. Before that, it prints
the fixed memory of a program's first coordinator (modules, the stacks of its
first threads).
"""

import argparse
import os
import pathlib
import statistics
import threading
import time

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.testing import FakeSession
from tfps_plugin.coordinator.testing import FakeStrategy

from .processes import cpu_seconds


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--closures", type=int, default=20_000)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[10, 100, 1000]
    )
    options = parser.parse_args()
    before = _resident_kib()
    _coordinator(num_workers=1).close()
    print(f"The first coordinator takes {_resident_kib() - before:,} KiB.")
    print(
        f"{'workers':>8}{'functions/s':>13}{'range':>20}{'CPU us each':>13}"
        f"{'threads':>9}{'KiB a worker':>14}"
    )
    for num_workers in options.workers:
        _measure(num_workers, options.rounds, options.closures)


def _measure(num_workers: int, num_rounds: int, num_closures: int) -> None:
    threads, memory = threading.active_count(), _resident_kib()
    coordinator = _coordinator(num_workers)
    threads = threading.active_count() - threads
    memory = _resident_kib() - memory
    rates, costs = [], []
    for _ in range(num_rounds):
        cpu, start = cpu_seconds([os.getpid()]), time.perf_counter()
        _run(coordinator, num_closures)
        rates.append(num_closures / (time.perf_counter() - start))
        costs.append(1e6 * (cpu_seconds([os.getpid()]) - cpu) / num_closures)
    coordinator.close()
    spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
    print(
        f"{num_workers:8,}{statistics.median(rates):13,.0f}{spread:>20}"
        f"{statistics.median(costs):13.0f}{threads:9,}"
        f"{memory / num_workers:14,.0f}",
        flush=True,
    )


def _coordinator(num_workers: int) -> ClusterCoordinator:
    """Returns a coordinator that has run a function on each worker."""
    coordinator = ClusterCoordinator(
        FakeStrategy(FakeSession(num_workers, num_ps=1))
    )
    _run(coordinator, 10 * num_workers)
    return coordinator


def _run(coordinator: ClusterCoordinator, count: int) -> None:
    for _ in range(count):
        coordinator.schedule(_nothing)
    coordinator.join()


def _nothing() -> None:
    pass


def _resident_kib() -> int:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


if __name__ == "__main__":
    main()

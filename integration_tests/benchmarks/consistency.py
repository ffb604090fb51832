"""Compares synchronous with asynchronous training, side by side.

    python -m integration_tests.benchmarks.consistency

Both train the same model on the same number of workers, in turns. Prints, for
each number of workers, the batches that all of them process in a second, and
the CPU milliseconds of all processes for a batch: median and range, and the
ratio of both, round by round.
"""

import argparse
import statistics
from collections.abc import Sequence

from . import comparison
from .comparison import Result
from .workloads import WORKLOADS

_ASYNCHRONOUS = {
    1: "tfps, 1 worker",
    2: "tfps",
    4: "tfps, 4 workers",
    8: "tfps, 8 workers",
}


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--suite",
        nargs="+",
        default=["dlrm26", "dense122"],
        choices=[*WORKLOADS],
    )
    parser.add_argument(
        "--workers",
        nargs="+",
        type=int,
        default=[*_ASYNCHRONOUS],
        choices=[*_ASYNCHRONOUS],
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    for workload in options.suite:
        print(f"{workload}: batches/s, CPU ms a batch")
        for number in options.workers:
            names = [
                _ASYNCHRONOUS[number],
                f"tfps, synchronous, {number} workers",
            ]
            results = comparison.compare(
                workload,
                names,
                options.rounds,
                options.seconds,
                tune=options.tune,
            )
            print(_line(number, results), flush=True)


def _line(num_workers: int, results: Sequence[Result]) -> str:
    asynchronous, synchronous = results
    rates = [
        [r.steps_per_second for r in asynchronous.rounds],
        # A step has a batch of each worker.
        [r.steps_per_second * num_workers for r in synchronous.rounds],
    ]
    costs = [
        [r.cpu_milliseconds for r in asynchronous.rounds],
        [r.cpu_milliseconds / num_workers for r in synchronous.rounds],
    ]
    return (
        f"{num_workers} workers: asynchronous {_spread(rates[0])}, "
        f"{_spread(costs[0])}; synchronous {_spread(rates[1])}, "
        f"{_spread(costs[1])}; ratios {_ratio(rates)}, {_ratio(costs)}"
    )


def _spread(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.3g} ({min(values):.3g} to {max(values):.3g})"


def _ratio(pair: Sequence[Sequence[float]]) -> str:
    of_async, of_sync = pair
    ratios = [b / a for a, b in zip(of_async, of_sync, strict=True)]
    middle = statistics.median(ratios)
    return f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()

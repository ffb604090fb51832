"""Compares rules by which workers wait for each other, side by side.

    python -m integration_tests.benchmarks.consistency

Asynchronous, synchronous and with bounded staleness, workers train the same
model, in turns. Prints, for each number of workers, the batches that all of
them process in a second, and the CPU milliseconds of all processes for a batch:
median and range, and the ratio of both to asynchronous training, round by
round.
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
                f"tfps, bounded staleness 8, {number} workers",
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
    parts, first = [], None
    for name, result, num_batches in zip(
        ("asynchronous", "synchronous", "bounded staleness 8"),
        results,
        # A synchronous step has a batch of each worker.
        (1, num_workers, 1),
        strict=True,
    ):
        rates = [r.steps_per_second * num_batches for r in result.rounds]
        costs = [r.cpu_milliseconds / num_batches for r in result.rounds]
        part = f"{name} {_spread(rates)}, {_spread(costs)}"
        if first is None:
            first = rates, costs
        else:
            part += (
                f", ratios {_ratio([first[0], rates])}, "
                f"{_ratio([first[1], costs])}"
            )
        parts.append(part)
    return f"{num_workers} workers: " + "; ".join(parts)


def _spread(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    return f"{middle:.3g} ({min(values):.3g} to {max(values):.3g})"


def _ratio(pair: Sequence[Sequence[float]]) -> str:
    of_async, of_other = pair
    ratios = [b / a for a, b in zip(of_async, of_other, strict=True)]
    middle = statistics.median(ratios)
    return f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()

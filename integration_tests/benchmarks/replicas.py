"""Compares a worker with two replicas with the same worker with one.

    python -m integration_tests.benchmarks.replicas

Both have the same cores, on which replicas cannot be faster: the difference is
what they cost. Prints the steps a second and the CPU milliseconds of all
processes for a step: the medians of both, and the ratio, round by round.
"""

import argparse
import statistics

from . import comparison
from .workloads import WORKLOADS

_NAMES = ("tfps, 1 worker", "tfps, 1 worker with 2 replicas")


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
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    for workload in options.suite:
        one, two = comparison.compare(
            workload, _NAMES, options.rounds, options.seconds, tune=False
        )
        costs = [
            b.cpu_milliseconds / a.cpu_milliseconds
            for a, b in zip(one.rounds, two.rounds, strict=True)
        ]
        print(
            f"{workload}: one replica {one.steps_per_second:.3g} steps/s, "
            f"{one.cpu_milliseconds:.3g} ms; two {two.steps_per_second:.3g}, "
            f"{two.cpu_milliseconds:.3g} ms; speed "
            f"{_ratio(two.ratios(one))}, CPU {_ratio(costs)}",
            flush=True,
        )


def _ratio(ratios: list[float]) -> str:
    middle = statistics.median(ratios)
    return f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()

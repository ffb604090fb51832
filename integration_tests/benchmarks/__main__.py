"""Compares this library with its peers, side by side.

    python -m integration_tests.benchmarks --suite all

Contestants are two workers and two parameter servers of this library, of
TensorFlow's strategy with tf-keras, and one process of Keras 3 and of tf-keras;
all run the same program, in unmodified Keras. If the extra `torchrec` is
installed, two processes of TorchRec join `dlrm26`. Contestants take turns on
one machine, round by round. Prints, for each workload, the median and the range
of steps per second, CPU milliseconds of all processes for a step, and how many
times as fast as each of the others this library is. With `--json FILE` they are
written there, too, and with `--png FILE` they are drawn. With `--tune` the
machine is tuned for all contestants, otherwise for none; each table says which.
"""

import argparse
import json
import pathlib
from collections.abc import Mapping
from collections.abc import Sequence

from . import comparison
from .comparison import Result
from .contestant import CONTESTANTS
from .contestant import ONLY_IN
from .contestant import installed
from .workloads import WORKLOADS


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--suite", nargs="+", default=["all"], choices=["all", *WORKLOADS]
    )
    parser.add_argument(
        "--contestants",
        nargs="+",
        default=installed(),
        choices=[*CONTESTANTS],
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--png", type=pathlib.Path)
    options = parser.parse_args()
    names = [*WORKLOADS] if "all" in options.suite else options.suite
    found: dict[str, list[Result]] = {}
    for name in names:
        contestants = [
            one
            for one in options.contestants
            if name in ONLY_IN.get(one, (name,))
        ]
        found[name] = comparison.compare(
            name,
            contestants,
            options.rounds,
            options.seconds,
            tune=options.tune,
        )
        print(
            comparison.table(name, found[name], tune=options.tune), flush=True
        )
        print()
        # After each workload: one that fails takes no figures with it.
        if options.json:
            figures = {"tuned": options.tune, "workloads": _as_json(found)}
            options.json.write_text(json.dumps(figures, indent=2))
        if options.png:
            _draw(found, options.png)


def _as_json(
    found: dict[str, list[Result]],
) -> dict[str, dict[str, list[dict[str, float]]]]:
    return {
        workload: {
            result.name: [each._asdict() for each in result.rounds]
            for result in results
        }
        for workload, results in found.items()
    }


def _draw(found: Mapping[str, Sequence[Result]], path: pathlib.Path) -> None:
    """Draws bars of steps per second, with their ranges."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(found), 1, squeeze=False, figsize=(9, 3 * len(found))
    )
    for axis, (workload, results) in zip(
        axes[:, 0], found.items(), strict=True
    ):
        middles = [result.steps_per_second for result in results]
        spread = [
            [
                middle - min(r.steps_per_second for r in result.rounds)
                for middle, result in zip(middles, results, strict=True)
            ],
            [
                max(r.steps_per_second for r in result.rounds) - middle
                for middle, result in zip(middles, results, strict=True)
            ],
        ]
        axis.barh([r.name for r in results], middles, xerr=spread)
        axis.invert_yaxis()
        axis.set_title(workload)
        axis.set_xlabel("steps per second")
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()

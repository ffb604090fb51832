"""Compares rules by which workers wait for each other, in quality and time.

    python -m integration_tests.benchmarks.quality.consistency [--svg FILE]

Four workers and two ps learn which flights are late (`flights.late`), once with
each rule: asynchronous, with bounded staleness, in step, and in step with a
backup worker. One worker is slow: it waits before each batch. Everything is
done once more without the slow worker. Prints, for each rule, the batches that
count in a second, and the score on test rows after the same number of batches;
`--svg` draws the score against the time of training alone.
"""

import argparse
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import tfps_plugin as tfps

from . import flights
from .problem import Problem
from .training import Course
from .training import Watch

_WORKERS = 4
_SLOW = _WORKERS - 1
# How often the score is measured, and so many batches between two times.
_TIMES = 12
_SMALLEST_SHARD_BYTES = 16 << 10


@dataclasses.dataclass(frozen=True)
class _Rule:
    """A rule by which workers wait for each other.

    Attributes:
        name: Name in tables.
        consistency: The option of the strategy.
        batches_of_a_step: Number of batches that count in a step.
        color: Color of its line: all are told apart by the color-blind.
    """

    name: str
    consistency: Any
    batches_of_a_step: int
    color: str


_RULES = [
    _Rule("asynchronous", tfps.Async(), 1, "#0072B2"),
    _Rule("bounded staleness 8", tfps.BoundedStaleness(8), 1, "#56B4E9"),
    _Rule("bounded staleness 1", tfps.BoundedStaleness(1), 1, "#009E73"),
    _Rule("synchronous", tfps.Sync(), _WORKERS, "#D55E00"),
    _Rule(
        "synchronous, 1 backup worker",
        tfps.Sync(backup_workers=1),
        _WORKERS - 1,
        "#E69F00",
    ),
]


def main() -> None:
    """Runs it once and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--slow-milliseconds", type=int, default=100)
    options = parser.parse_args()
    problem = flights.late(pathlib.Path())
    batches = int(options.epochs * problem.steps) // _TIMES
    print(
        f"{_WORKERS} workers, 2 ps, {_TIMES * batches} batches of "
        f"{problem.batch}; a slow worker waits {options.slow_milliseconds} ms "
        "before each of its batches"
    )
    print(f"{'':32}{'batches/s':>10}{'seconds':>9}{problem.metric:>8}")
    courses: dict[tuple[str, bool], Course] = {}
    for is_slow in (True, False):
        print("with a slow worker" if is_slow else "without a slow worker")
        for rule in _RULES:
            delay = options.slow_milliseconds if is_slow else 0
            course = _train(problem, rule, batches, delay)
            courses[rule.name, is_slow] = course
            seconds = sum(course.seconds)
            print(
                f"{rule.name:32}{_TIMES * batches / seconds:10.1f}"
                f"{seconds:9.1f}{course.scores[-1]:8.4f}",
                flush=True,
            )
    print(f"load {os.getloadavg()[0]:.1f}")
    if options.svg is not None:
        _draw(courses, problem.metric, options.svg)


def _train(
    problem: Problem, rule: _Rule, batches: int, slow_milliseconds: int
) -> Course:
    course = Course()
    keras.utils.set_random_seed(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        tfps.LocalCluster(num_workers=_WORKERS, num_ps=2) as cluster,
    ):
        read = problem.train.dataset_fn(
            pathlib.Path(folder) / "rows", problem.batch
        )
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.MinSizePartitioner(
                _SMALLEST_SHARD_BYTES, max_shards=2
            ),
            consistency=rule.consistency,
        )
        with strategy.scope():
            model = problem.make_model()
        data = tfps.DatasetCreator(_slowed(read, slow_milliseconds))
        # Tracing is no part of the comparison, nor is what these steps teach.
        start = model.get_weights()
        model.fit(data, steps_per_epoch=2 * _WORKERS, verbose=0)
        model.set_weights(start)
        for variable in model.optimizer.variables:
            if "learning_rate" not in variable.path:
                variable.assign(keras.ops.zeros_like(variable))
        model.fit(
            data,
            epochs=_TIMES,
            steps_per_epoch=batches // rule.batches_of_a_step,
            callbacks=[Watch(problem, course)],
            verbose=0,
        )
        tfps.ClusterCoordinator(strategy).close()
    keras.backend.clear_session()
    return course


def _slowed(
    read: Callable[[tf.distribute.InputContext], tf.data.Dataset],
    milliseconds: int,
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Lets the slow worker sleep before each of its batches."""

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = read(context)
        if not milliseconds or context.input_pipeline_id != _SLOW:
            return batches
        spec = batches.element_spec
        parts = tf.nest.flatten(spec)
        asleep = tf.raw_ops.SleepDataset(
            input_dataset=tf.data.experimental.to_variant(batches),
            sleep_microseconds=1000 * milliseconds,
            output_types=[part.dtype for part in parts],
            output_shapes=[part.shape for part in parts],
        )
        return tf.data.experimental.from_variant(asleep, spec)

    return dataset


def _draw(
    courses: dict[tuple[str, bool], Course], metric: str, path: pathlib.Path
) -> None:
    import matplotlib

    matplotlib.use("svg")
    # The same figures make the same file.
    matplotlib.rcParams["svg.hashsalt"] = "tfps"
    from matplotlib import pyplot

    figure, both = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axes, is_slow in zip(both, (True, False), strict=True):
        for rule in _RULES:
            course = courses[rule.name, is_slow]
            seconds = [
                sum(course.seconds[: n + 1]) for n in range(len(course.seconds))
            ]
            axes.plot(
                seconds,
                course.scores,
                color=rule.color,
                marker=".",
                label=rule.name,
            )
        axes.set_title(
            "one of four workers is slow" if is_slow else "no worker is slow"
        )
        axes.set_xlabel("seconds of training")
        axes.grid(alpha=0.3)
    both[0].set_ylabel(f"{metric} on test rows")
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.legend(
        *both[1].get_legend_handles_labels(),
        loc="lower center",
        ncols=len(_RULES),
        fontsize="small",
    )
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()

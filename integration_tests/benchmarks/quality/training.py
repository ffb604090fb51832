"""One training with one setting."""

import contextlib
import dataclasses
import logging
import pathlib
import re
import time
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

import tfps_plugin as tfps

from .problem import Problem

_ANSWERED_AT_ONCE = 8192
_SMALLEST_SHARD_BYTES = 16 << 10


@dataclasses.dataclass(frozen=True)
class Setting:
    """Setting of a training.

    Attributes:
        sparse_update: Option of the strategy; None for one process.
        in_flight: `max_closures_in_flight_per_worker`.
        prefetch: `prefetch_embeddings`.
    """

    sparse_update: Any = None
    in_flight: int | None = None
    prefetch: bool | None = None

    def __str__(self) -> str:
        if self.sparse_update is None:
            return "one process"
        calls = "default" if self.in_flight is None else str(self.in_flight)
        if self.prefetch is not None:
            calls = f"prefetch {self.prefetch}"
        return f"{self.sparse_update}, {calls}"


@dataclasses.dataclass
class Course:
    """Figures of a training, epoch by epoch.

    Attributes:
        losses: Training losses.
        scores: Scores on test rows.
        seconds: Seconds of training alone.
        calls: The number of calls in flight that was found to be best.
    """

    losses: list[float] = dataclasses.field(default_factory=list)
    scores: list[float] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)
    calls: list[int] = dataclasses.field(default_factory=list)


class Watch(keras.callbacks.Callback):
    """Records an epoch when it has ended."""

    def __init__(self, problem: Problem, course: Course) -> None:
        super().__init__()
        self._problem = problem
        self._course = course
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._course.seconds.append(time.perf_counter() - self._began)
        self._course.losses.append(float(logs["loss"]))
        answers = self.model.predict(
            self._problem.questions, batch_size=_ANSWERED_AT_ONCE, verbose=0
        )
        self._course.scores.append(self._problem.score(answers))


def train(
    problem: Problem,
    setting: Setting,
    seed: int,
    cluster: tfps.LocalCluster,
    folder: pathlib.Path,
) -> Course:
    """Trains a new model.

    Args:
        problem: The problem to learn.
        setting: The setting.
        seed: Seed of the initial weights.
        cluster: The cluster to train on.
        folder: Folder for a file of the rows.
    """
    course = Course()
    keras.utils.set_random_seed(seed)
    read = problem.train.dataset_fn(folder / "rows", problem.batch)
    with contextlib.ExitStack() as stack:
        if setting.sparse_update is not None:
            strategy = tfps.ParameterServerStrategy(
                cluster.cluster_resolver,
                tfps.partitioners.MinSizePartitioner(
                    _SMALLEST_SHARD_BYTES, max_shards=2
                ),
                sparse_update=setting.sparse_update,
                scheduling=tfps.SchedulingOptions(
                    max_closures_in_flight_per_worker=setting.in_flight,
                    prefetch_embeddings=setting.prefetch,
                ),
            )
            stack.callback(tfps.ClusterCoordinator(strategy).close)
            with strategy.scope():
                model = problem.make_model()
            data = tfps.DatasetCreator(read)
        else:
            model = problem.make_model()
            data = read(tf.distribute.InputContext())
        stack.enter_context(_noting_calls(course))
        model.fit(
            data,
            epochs=problem.epochs,
            steps_per_epoch=problem.steps,
            callbacks=[Watch(problem, course)],
            verbose=0,
        )
    keras.backend.clear_session()
    return course


@contextlib.contextmanager
def _noting_calls(course: Course) -> Iterator[None]:
    class Note(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said = re.match(r"Each worker runs (\d+)", record.getMessage())
            if said:
                course.calls.append(int(said.group(1)))

    logger = logging.getLogger("tfps_plugin")
    handler, level = Note(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)

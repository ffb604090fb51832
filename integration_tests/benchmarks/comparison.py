"""Comparison of contestants that train in turns."""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tfps_plugin.cluster.machine import tuning

from . import contestant
from .workloads import WORKLOADS

# The time to make a model, to warm up, or for a turn.
_ANSWER_SECONDS = 900.0
# The steps of a turn: two calls of ten steps each; fewer for slow contestants.
_LEAST_STEPS = 20
_LEAST_SLOW_STEPS = 2


class ContestantEndedError(RuntimeError):
    """A contestant's process has ended, or was ended."""


class Round(NamedTuple):
    """The cost of some steps.

    Attributes:
        steps_per_second: Their rate by the clock.
        cpu_milliseconds: Processor time of all processes for one step.
    """

    steps_per_second: float
    cpu_milliseconds: float


class Result(NamedTuple):
    """The rounds of a contestant.

    Attributes:
        name: The contestant's name.
        rounds: The rounds in their order.
    """

    name: str
    rounds: list[Round]

    @property
    def steps_per_second(self) -> float:
        """The median rate."""
        return statistics.median(r.steps_per_second for r in self.rounds)

    @property
    def cpu_milliseconds(self) -> float:
        """The median processor time of one step."""
        return statistics.median(r.cpu_milliseconds for r in self.rounds)

    def ratios(self, other: "Result") -> list[float]:
        """Returns its speed over the other's, round by round."""
        return [
            mine.steps_per_second / theirs.steps_per_second
            for mine, theirs in zip(self.rounds, other.rounds, strict=True)
        ]


def compare(
    workload: str,
    names: Sequence[str],
    num_rounds: int,
    seconds: float,
    *,
    tune: bool,
) -> list[Result]:
    """Lets contestants take turns on one workload.

    Other load of the machine affects all of them: in each round, all train for
    about the same time, one after the other.

    Args:
        workload: One of `workloads.WORKLOADS`.
        names: Names in `contestant.CONTESTANTS`.
        num_rounds: The number of turns of each contestant.
        seconds: The length of a turn, about.
        tune: Whether the machine is tuned for all contestants, ours and peers,
            or for none (docs/tuning_the_machine.md).
    """
    results = [Result(name, []) for name in names]
    with contextlib.ExitStack() as stack:
        runners, steps = [], []
        for name in names:
            runner, speed = stack.enter_context(_runner(name, workload, tune))
            runners.append(runner)
            steps.append(_steps_of(runner, seconds, speed))
        for _ in range(num_rounds):
            for number, (result, count) in enumerate(
                zip(results, steps, strict=True)
            ):
                try:
                    made = _run(runners[number], count)
                except ContestantEndedError as error:
                    # TensorFlow's strategy has sometimes crashed its process.
                    print(f"{error} It begins again.", file=sys.stderr)
                    runners[number], _ = stack.enter_context(
                        _runner(result.name, workload, tune)
                    )
                    _run(runners[number], count)
                    made = _run(runners[number], count)
                result.rounds.append(made)
    return results


@contextlib.contextmanager
def _runner(
    name: str, workload: str, tune: bool
) -> Iterator[tuple[subprocess.Popen[str], float]]:
    """Yields a contestant that is ready, and its first speed; ends it."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if contestant.trains_alone(name):
        environ.update(tuning.task_variables(environ, tune=tune))
    else:
        # This tunes its tasks, but not the process that controls them.
        environ[tuning.VARIABLE] = "1" if tune else "0"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", contestant.__name__),
            *(name, workload),
        ],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, _answer_of(process)["steps_per_second"]
    finally:
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            process.communicate(timeout=60)
        process.kill()
        process.wait()


def _steps_of(
    runner: subprocess.Popen[str], seconds: float, speed: float
) -> int:
    """Returns the number of steps that take about the length of a turn.

    It is a multiple of the steps of a call, found in longer and longer turns:
    the first steps of a turn are slower than the others, especially with many
    workers. A contestant that takes seconds for a step makes few.

    Args:
        runner: The contestant's process.
        seconds: The length of a turn, about.
        speed: Steps per second of its first steps.
    """
    if speed * seconds < _LEAST_STEPS:
        return max(_LEAST_SLOW_STEPS, round(speed * seconds))
    steps = 0
    wanted = _LEAST_STEPS
    while wanted > 2 * steps:
        steps = wanted
        rate = _run(runner, steps).steps_per_second
        wanted = _LEAST_STEPS * max(1, round(rate * seconds / _LEAST_STEPS))
    return wanted


def _run(runner: subprocess.Popen[str], steps: int) -> Round:
    if runner.stdin is None:
        raise RuntimeError("The contestant cannot be told anything.")
    # If it has ended, the answer below says so.
    with contextlib.suppress(BrokenPipeError):
        runner.stdin.write(f"{steps}\n")
        runner.stdin.flush()
    answer = _answer_of(runner)
    return Round(
        steps / answer["seconds"], 1000 * answer["cpu_seconds"] / steps
    )


def _answer_of(runner: subprocess.Popen[str]) -> dict[str, Any]:
    # A contestant that hangs is killed, which ends the loop below.
    deadline = threading.Timer(_ANSWER_SECONDS, runner.kill)
    deadline.start()
    try:
        for line in runner.stdout or ():
            if line.startswith(contestant.MARK):
                answer: dict[str, Any] = json.loads(
                    line.removeprefix(contestant.MARK)
                )
                return answer
    finally:
        deadline.cancel()
    raise ContestantEndedError(
        "A contestant has ended, or did not answer within "
        f"{_ANSWER_SECONDS:.0f} s. Received: {runner.args!r}. Run it by "
        "itself to see why: it reads numbers of steps."
    )


def table(workload: str, results: Sequence[Result], *, tune: bool) -> str:
    """Returns the results as text; ratios are to the first."""
    batch = WORKLOADS[workload].batch
    machine = "tuned for all" if tune else "tuned for none"
    lines = [
        f"{workload}, batches of {batch}; machine {machine}",
        f"{'':32}{'steps/s':>9}{'range':>18}{'CPU ms/step':>13}{'ratio':>9}"
        f"{'range':>18}",
    ]
    first = results[0]
    for result in results:
        rates = [r.steps_per_second for r in result.rounds]
        ratios = first.ratios(result)
        lines.append(
            f"{result.name:32}{result.steps_per_second:9.1f}"
            f"{f'{min(rates):.1f} to {max(rates):.1f}':>18}"
            f"{result.cpu_milliseconds:13.1f}"
            f"{statistics.median(ratios):9.2f}"
            f"{f'{min(ratios):.2f} to {max(ratios):.2f}':>18}"
        )
    return "\n".join(lines)

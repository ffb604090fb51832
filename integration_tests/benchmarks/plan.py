"""Measures the costs that `tfps plan` rests on, and checks its predictions.

    python -m integration_tests.benchmarks.plan [--costs FILE]

Trains workloads with 1 to 8 workers and two parameter servers on this machine,
and measures processor time of each task and steps per second. The costs of
messages, operations, numbers and bytes follow by least squares, none of them
negative; they are written to FILE. Then it prints what `tfps plan --cores`
predicts with these costs, what was measured, and the error; also of workloads
that did not decide the costs.

Other programs may use the machine, too: the cores of a prediction are those
that the system left idle or gave to the job while it was measured.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfps_plugin.planning import rates
from tfps_plugin.planning.costs import Costs
from tfps_plugin.planning.machines import Machines
from tfps_plugin.planning.work import PsWork
from tfps_plugin.planning.work import StepWork

from . import processes
from .workloads import WORKLOADS

_NUM_PS = 2
_STEPS_PER_CALL = 5
# Fewer than 500 in all: later, rounds of several steps share messages.
_WARM_UP_STEPS = 60
_SHORT, _LONG = 60, 360
_MARK = "@@"


@dataclasses.dataclass(frozen=True)
class _Measured:
    """Figures of one step, without the start of `fit`.

    Attributes:
        workload: Name of the workload.
        workers: Number of workers.
        steps_per_call: Number of steps in a call.
        steps_per_second: Steps per second of all workers.
        worker: Processor seconds of the workers.
        ps: Processor seconds of the parameter servers.
        chief: Processor seconds of the chief.
        cores: Cores that the job had, or could have had.
    """

    workload: str
    workers: int
    steps_per_call: int
    steps_per_second: float
    worker: float
    ps: float
    chief: float
    cores: float


def main() -> None:
    """Runs it and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "workloads",
        nargs="*",
        default=["dlrm26", "dense122", "one_giant_table"],
        metavar="workload",
    )
    parser.add_argument(
        "--held-out",
        nargs="*",
        default=["wide_deep", "dlrm26_zipf"],
        metavar="workload",
        help="workloads that are predicted, and do not decide the costs",
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--costs", help="file for the measured costs")
    parser.add_argument("--measure", nargs=2, type=int, help="for itself")
    options = parser.parse_args()
    if options.measure:
        (name,) = options.workloads
        found = _measure(name, *options.measure)
        print(_MARK + json.dumps(dataclasses.asdict(found)), flush=True)
        return
    names = [*options.workloads, *options.held_out]
    works = {name: _work(name) for name in names}
    measured = [
        _in_child(name, workers, _STEPS_PER_CALL)
        for name in names
        for workers in options.workers
    ]
    # What a call costs beside its steps.
    measured += [_in_child(name, 2, 1) for name in names]
    costs = _fitted(
        works,
        [each for each in measured if each.workload in options.workloads],
    )
    text = json.dumps(dataclasses.asdict(costs), indent=2)
    print(text, flush=True)
    if options.costs:
        pathlib.Path(options.costs).write_text(text + "\n", encoding="utf-8")
    _compare(works, measured, costs)


def _work(name: str) -> StepWork:
    """Returns the work of a step, as `tfps plan` finds it."""
    script = pathlib.Path(__file__).with_name("planned.py")
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tfps_plugin", "plan", "--json"),
            *(f"--ps={_NUM_PS}", "--cores=2", str(script), name),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    found = json.loads(ended.stdout)["work"]
    ps = {int(index): PsWork(**each) for index, each in found.pop("ps").items()}
    print(f"{name}: {found} {ps}", flush=True)
    return StepWork(ps=ps, **found)


def _in_child(name: str, workers: int, steps_per_call: int) -> _Measured:
    """Measures in a process of its own."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "integration_tests.benchmarks.plan"),
            *(name, "--measure", str(workers), str(steps_per_call)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=1200,
    )
    (line,) = (
        each for each in ended.stdout.splitlines() if each.startswith(_MARK)
    )
    found = _Measured(**json.loads(line.removeprefix(_MARK)))
    print(found, flush=True)
    return found


def _measure(name: str, workers: int, steps_per_call: int) -> _Measured:
    import keras

    import tfps_plugin as tfps

    workload = WORKLOADS[name]
    with tfps.LocalCluster(num_workers=workers, num_ps=_NUM_PS) as cluster:
        strategy = tfps.ParameterServerStrategy(
            cluster.cluster_resolver,
            tfps.partitioners.MinSizePartitioner(
                workload.min_shard_bytes, max_shards=2
            ),
            scheduling=tfps.SchedulingOptions(
                steps_per_closure=steps_per_call, prefetch_embeddings=False
            ),
        )
        with strategy.scope():
            model = workload.model(keras, None)
        data = tfps.DatasetCreator(workload.dataset)
        groups = [
            [cluster.process("worker", i).pid for i in range(workers)],
            [cluster.process("ps", i).pid for i in range(_NUM_PS)],
            [os.getpid()],
        ]

        def train(steps: int) -> np.ndarray:
            before = _times(groups)
            model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)
            return _times(groups) - before

        train(_WARM_UP_STEPS)
        short, long = train(_SHORT), train(_LONG)
        tfps.ClusterCoordinator(strategy).close()
    wall, idle, of_workers, of_ps, of_chief = (long - short) / (_LONG - _SHORT)
    return _Measured(
        name,
        workers,
        steps_per_call,
        1 / wall,
        of_workers,
        of_ps,
        of_chief,
        (idle + of_workers + of_ps + of_chief) / wall,
    )


def _times(groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns seconds: of the clock, idle ones of all cores, and of groups."""
    line = pathlib.Path("/proc/stat").read_text().partition("\n")[0]
    idle, waiting = map(int, line.split()[4:6])
    return np.array(
        [
            time.perf_counter(),
            (idle + waiting) / os.sysconf("SC_CLK_TCK"),
            *(processes.cpu_seconds(pids) for pids in groups),
        ]
    )


def _fitted(works: dict[str, StepWork], measured: list[_Measured]) -> Costs:
    """Returns the costs that explain the processor time best."""
    ps_rows, ps_times, worker_rows, worker_times = [], [], [], []
    chief_rows, chief_times = [], []
    for each in measured:
        work = works[each.workload]
        chief_rows.append([1, 1 / each.steps_per_call])
        chief_times.append(each.chief)
        ps = work.ps.values()
        ps_rows.append(
            [
                work.messages,
                sum(one.operations for one in ps),
                sum(one.elements for one in ps),
                work.bytes_in + work.bytes_out,
                _NUM_PS / each.steps_per_call,
            ]
        )
        ps_times.append(each.ps)
        worker_rows.append(
            [
                work.messages,
                work.bytes_in + work.bytes_out,
                1 / each.steps_per_call,
            ]
        )
        worker_times.append(each.worker - work.compute_cpu_seconds)
    message, operation, element, byte, ps_call = _least_squares(
        ps_rows, ps_times
    )
    worker_message, worker_byte, worker_call = _least_squares(
        worker_rows, worker_times
    )
    step, call = _least_squares(chief_rows, chief_times)
    return Costs(
        ps_message=message,
        ps_operation=operation,
        ps_element=element,
        ps_byte=byte,
        ps_call=ps_call,
        worker_message=worker_message,
        worker_byte=worker_byte,
        worker_call=worker_call,
        chief_step=step,
        chief_call=call,
    )


def _least_squares(rows: Any, values: Any) -> list[float]:
    """Returns factors of the columns, none negative, by relative error."""
    values = np.array(values)
    rows = np.array(rows, float) / np.abs(values)[:, None]
    ones = np.sign(values)
    width = rows.shape[1]
    best, least = np.zeros(width), float("inf")
    for size in range(1, width + 1):
        for columns in itertools.combinations(range(width), size):
            chosen = rows[:, columns]
            scale = np.abs(chosen).max(0)
            found = np.linalg.lstsq(chosen / scale, ones, rcond=None)[0] / scale
            error = float(((chosen @ found - ones) ** 2).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(width), error
                best[list(columns)] = found
    return [float(each) for each in best]


def _compare(
    works: dict[str, StepWork], measured: list[_Measured], costs: Costs
) -> None:
    """Prints predictions and measurements."""
    print(
        f"{'workload':>16}{'workers':>8}{'cores':>7}{'steps/s':>9}"
        f"{'predicted':>10}{'error':>7}"
        f"{'CPU ms':>8}{'predicted':>10}{'error':>7}"
    )
    for each in measured:
        work = works[each.workload]
        machines = Machines(
            each.workers,
            _NUM_PS,
            shared_cores=each.cores,
            steps_per_call=each.steps_per_call,
        )
        speed = rates.forecast(work, machines, costs).steps_per_second
        times = rates.step_times(work, machines, costs, each.steps_per_call)
        cpu = times.worker_cpu + sum(times.ps.values()) + times.chief
        real = each.worker + each.ps + each.chief
        print(
            f"{each.workload:>16}{each.workers:8}{each.cores:7.2f}"
            f"{each.steps_per_second:9.1f}{speed:10.1f}"
            f"{speed / each.steps_per_second - 1:7.0%}"
            f"{1000 * real:8.2f}{1000 * cpu:10.2f}{cpu / real - 1:7.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()

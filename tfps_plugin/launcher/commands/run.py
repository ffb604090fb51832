"""`tfps run`: a whole cluster on this machine."""

import contextlib
import functools
import os
import sys
from typing import Any

import click

from tfps_plugin.launcher.commands import help_texts


@click.command(
    context_settings={
        # What follows the script is the script's.
        "allow_interspersed_args": False,
    }
)
@click.option(
    "--workers",
    metavar="N[:MOST]",
    default="2",
    show_default=True,
    help="The number of workers. With 2:8, the job starts with two, and "
    "`tfps scale` changes their number, up to eight.",
)
@click.option(
    "--ps",
    metavar="N[:MOST]",
    default="1",
    show_default=True,
    help="The number of parameter servers. With 1:4, `tfps scale` changes it, "
    "too, up to four.",
)
@click.option(
    "--evaluator",
    "has_evaluator",
    is_flag=True,
    help="Run the script a second time, as the evaluator.",
)
@click.option(
    "--grace-seconds",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long the script may take to end after Ctrl-C.",
)
@click.option(
    "--evaluator-seconds",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    help="How long the evaluator may take for the last checkpoint.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often to restart each task that fails. The script is restarted "
    "only if it was killed, or if it raised after a task had died.",
)
@click.option(
    "--tensorflow-logs",
    "wants_tensorflow_logs",
    is_flag=True,
    help="Show everything that TensorFlow logs.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="TFPS_LOG_FORMAT",
    default="text",
    show_default=True,
    help=help_texts.LOG_FORMAT,
)
@click.option(
    "--logical-cpus",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help=help_texts.LOGICAL_CPUS.format("each worker"),
)
@click.option(
    "--tune",
    is_flag=True,
    help=help_texts.TUNE.format("the workers and parameter servers"),
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("script_arguments", metavar="[ARGUMENTS]...", nargs=-1)
def run(
    workers: str,
    ps: str,
    has_evaluator: bool,
    grace_seconds: float,
    evaluator_seconds: float,
    max_restarts: int,
    wants_tensorflow_logs: bool,
    log_format: str,
    logical_cpus: int,
    tune: bool,
    script: str,
    script_arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT as the chief of a whole cluster on this machine.

    Every task is a process with a TF_CONFIG of its own. Each line of their logs
    begins with the task's name; the script itself writes to a terminal as if it
    ran alone. The job ends with the script, and with its exit code. An
    evaluator may still evaluate the last checkpoint.

    Ctrl-C interrupts the script, and the other tasks end after it. A second
    Ctrl-C ends them at once.

    Only errors of TensorFlow's own log are shown. For more, set
    TF_CPP_MIN_LOG_LEVEL (0: everything, 1: no information, 2: no warnings,
    3: no errors), or give --tensorflow-logs.
    """
    from tfps_plugin.cluster.environment import with_settings
    from tfps_plugin.cluster.machine import tuning
    from tfps_plugin.cluster.machine.ports import reserved_port
    from tfps_plugin.cluster.output import json_lines
    from tfps_plugin.cluster.output import tensorflow_noise
    from tfps_plugin.cluster.output.console import Console
    from tfps_plugin.cluster.spec import FILE_VARIABLE
    from tfps_plugin.cluster.spec import PARAMETER_SERVER
    from tfps_plugin.cluster.spec import WORKER
    from tfps_plugin.launcher import control_socket
    from tfps_plugin.launcher import process_plan
    from tfps_plugin.launcher.job import Job
    from tfps_plugin.launcher.scaling import Scaling
    from tfps_plugin.launcher.task_range import OPTIONS
    from tfps_plugin.launcher.task_range import TaskRange

    ranges = {}
    for job, text in ((WORKER, workers), (PARAMETER_SERVER, ps)):
        try:
            ranges[job] = TaskRange.parse(job, text)
        except ValueError as error:
            raise click.BadParameter(
                str(error), param_hint=OPTIONS[job]
            ) from error
    sizes = {
        "num_workers": ranges[WORKER].most,
        "num_ps": ranges[PARAMETER_SERVER].most,
    }
    tune = tune or tuning.is_on(os.environ)
    of_tasks: dict[str, Any] = {
        "logical_cpus": logical_cpus,
        "tune": tune,
        "environment": os.environ,
    }
    with contextlib.ExitStack() as reserved:
        ports = [
            reserved.enter_context(reserved_port())
            for _ in range(process_plan.num_ports(**sizes))
        ]
        largest = process_plan.plan_cluster(ports, **sizes)
        cluster = process_plan.first_tasks(
            largest, {job: each.first for job, each in ranges.items()}
        )
        scaling = None
        of_chief = {}
        if any(each.may_change for each in ranges.values()):
            scaling = Scaling(
                reserved.enter_context(control_socket.listening()),
                ranges.values(),
                largest,
                functools.partial(process_plan.plan_task, **of_tasks),
            )
            of_chief[FILE_VARIABLE] = scaling.path
        plans = process_plan.plan_processes(
            cluster,
            script,
            script_arguments,
            has_evaluator=has_evaluator,
            **of_tasks,
            of_chief=of_chief,
        )
        console = Console(
            [
                *(process.name for process in plans),
                *(
                    str(task)
                    for task in largest.serving_tasks
                    if task not in cluster.serving_tasks
                ),
            ],
            os.environ,
            as_json=log_format == json_lines.JSON,
        )
        environment = with_settings(
            os.environ, hosts=[task.host for task in largest.tasks]
        )
        # All tasks share this machine's GPUs: none may take all the memory.
        environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        log_level = tensorflow_noise.choose_log_level(
            os.environ, wants_everything=wants_tensorflow_logs
        )
        environment[tensorflow_noise.LOG_LEVEL] = log_level
        environment[json_lines.VARIABLE] = log_format
        # A task may listen on the port that is reserved for it.
        environment["TF_GRPC_REUSE_PORT"] = "1"
        running = Job(
            plans,
            console,
            environment,
            grace_seconds=grace_seconds,
            evaluator_seconds=evaluator_seconds,
            max_restarts=max_restarts,
            scaling=scaling,
            is_quiet=tensorflow_noise.is_quiet(log_level),
        )
        sys.exit(running.run())

"""The command line: options in, exit code out.

A command imports what it needs when it runs, so `tfps --help` answers at once.
"""

import contextlib
import functools
import os
import sys
from typing import Any

import click

_LOGICAL_CPUS_HELP = (
    "Number of CPU devices of {}. Without accelerators, it has a replica on "
    "each."
)
_TUNE_HELP = (
    "Tune this machine for {}: cores, scheduling and memory. TFPS_TUNE=1 in "
    "the environment does the same. See docs/tuning_the_machine.md."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tfps_plugin", prog_name="tfps")
def main() -> None:
    """Parameter-server training for Keras 3."""


@main.command(
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
    "--logical-cpus",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help=_LOGICAL_CPUS_HELP.format("each worker"),
)
@click.option(
    "--tune",
    is_flag=True,
    help=_TUNE_HELP.format("the workers and parameter servers"),
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
    from tfps_plugin.cluster.output import tensorflow_noise
    from tfps_plugin.cluster.output.console import Console
    from tfps_plugin.cluster.spec import FILE_VARIABLE
    from tfps_plugin.cluster.spec import PARAMETER_SERVER
    from tfps_plugin.cluster.spec import WORKER
    from tfps_plugin.launcher import control_socket
    from tfps_plugin.launcher import plan
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
            for _ in range(plan.num_ports(**sizes))
        ]
        largest = plan.plan_cluster(ports, **sizes)
        cluster = plan.first_tasks(
            largest, {job: each.first for job, each in ranges.items()}
        )
        scaling = None
        of_chief = {}
        if any(each.may_change for each in ranges.values()):
            scaling = Scaling(
                reserved.enter_context(control_socket.listening()),
                ranges.values(),
                largest,
                functools.partial(plan.plan_task, **of_tasks),
            )
            of_chief[FILE_VARIABLE] = scaling.path
        plans = plan.plan_processes(
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


@main.command()
@click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(min=1),
    help="The number of workers from now on; without it, it stays.",
)
@click.option(
    "--ps",
    "num_ps",
    type=click.IntRange(min=1),
    help="The number of parameter servers from now on, likewise.",
)
@click.option(
    "--job",
    "process_id",
    type=int,
    help="Process id of the `tfps run`, if several run.",
)
def scale(
    num_workers: int | None, num_ps: int | None, process_id: int | None
) -> None:
    """Change the size of the cluster of a job that runs on this machine.

    The job was started with `tfps run --workers 2:8 --ps 1:4`, for example; a
    range of one of them will do. Workers that are added take part at once;
    those that are removed end what they run. Variables move to parameter
    servers that are added, and away from those that are removed, while training
    goes on. The script makes a tfps.ParameterServerStrategy() without a cluster
    resolver.
    """
    from tfps_plugin.cluster.spec import PARAMETER_SERVER
    from tfps_plugin.cluster.spec import WORKER
    from tfps_plugin.launcher import control_socket

    numbers = {
        job: number
        for job, number in ((WORKER, num_workers), (PARAMETER_SERVER, num_ps))
        if number is not None
    }
    if not numbers:
        raise click.UsageError(
            "There is nothing to change. Expected --workers, --ps, or both."
        )
    jobs = control_socket.running_jobs()
    if process_id is None and len(jobs) == 1:
        (process_id,) = jobs
    if process_id not in jobs:
        raise click.ClickException(
            "There is no such job. Expected one that was started with a "
            "largest number of workers or parameter servers, such as tfps run "
            "--workers 2:8 or --ps 1:4, and --job if there are several. "
            "Received: "
            + (f"--job {process_id}" if process_id is not None else "no --job")
            + f"; process ids of such jobs: {sorted(jobs) or 'none'}."
        )
    try:
        answer = control_socket.ask(jobs[process_id], numbers)
    except OSError as error:
        raise click.ClickException(
            f"The job does not answer. Expected tfps run, process {process_id}"
            f". Received: {error}."
        ) from error
    if "error" in answer:
        raise click.ClickException(answer["error"])
    click.echo(answer.get("text", ""))


@main.command()
@click.option(
    "--chief-start-timeout-seconds",
    type=click.FloatRange(min=0),
    help="How long to wait for the chief to connect.",
)
@click.option(
    "--chief-grace-seconds",
    type=click.FloatRange(min=0),
    help="How long to wait for a chief that has died to come back.",
)
@click.option(
    "--logical-cpus",
    type=click.IntRange(min=1),
    help=_LOGICAL_CPUS_HELP.format("the worker"),
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    help="How long a worker may go on after SIGTERM, to end what it runs.",
)
@click.option(
    "--drained-exit-code",
    type=click.IntRange(0, 255),
    help="Exit code of a worker that has ended it; 143 by default.",
)
@click.option("--tune", is_flag=True, help=_TUNE_HELP.format("this task"))
def serve(tune: bool, **options: float | int | None) -> None:
    """Be the worker or parameter server that TF_CONFIG names.

    Ends with 0 when the job is over.
    """
    from tfps_plugin.cluster.serving import task_server

    arguments = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in options.items()
        if value is not None
    ]
    task_server.main([*arguments, *(["--tune"] if tune else [])])

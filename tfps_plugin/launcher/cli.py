"""`tfps`: options in, exit code out.

What a command needs is imported when it runs: `tfps --help` answers at once.
"""

import contextlib
import os
import sys

import click


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
    "num_workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="How many workers compute.",
)
@click.option(
    "--ps",
    "num_ps",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="How many parameter servers hold the variables.",
)
@click.option(
    "--evaluator",
    "has_evaluator",
    is_flag=True,
    help="Run the script once more, as the evaluator beside the training.",
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
    help="How often each task that fails is started again; the script only "
    "if it was killed, or raised after a task had died.",
)
@click.option(
    "--tensorflow-logs",
    "wants_tensorflow_logs",
    is_flag=True,
    help="Show all that TensorFlow logs, from its first line on.",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("script_arguments", metavar="[ARGUMENTS]...", nargs=-1)
def run(
    num_workers: int,
    num_ps: int,
    has_evaluator: bool,
    grace_seconds: float,
    evaluator_seconds: float,
    max_restarts: int,
    wants_tensorflow_logs: bool,
    script: str,
    script_arguments: tuple[str, ...],
) -> None:
    """Run SCRIPT as the chief of a whole cluster on this machine.

    Every task is a process, told by its TF_CONFIG who it is. Each line of
    their logs says where it comes from; the script itself writes to a terminal
    as if it ran alone. The job ends when the script does, with its exit code;
    an evaluator may still evaluate the last checkpoint.

    Ctrl-C interrupts the script, and ends the others once it has ended; a
    second one does not wait for that.

    Of TensorFlow's own log only errors are shown, and not what it says at
    every start. For more, set TF_CPP_MIN_LOG_LEVEL (0 is everything, 1 leaves
    out information, 2 warnings, 3 errors), or give --tensorflow-logs.
    """
    from tfps_plugin.cluster.environment import task_environment
    from tfps_plugin.cluster.machine import large_pages
    from tfps_plugin.cluster.machine import shared_cores
    from tfps_plugin.cluster.machine.ports import reserved_port
    from tfps_plugin.cluster.output import tensorflow_noise
    from tfps_plugin.cluster.output.console import Console
    from tfps_plugin.launcher import plan
    from tfps_plugin.launcher.job import Job

    sizes = {"num_workers": num_workers, "num_ps": num_ps}
    with contextlib.ExitStack() as reserved:
        ports = [
            reserved.enter_context(reserved_port())
            for _ in range(plan.num_ports(**sizes))
        ]
        cluster = plan.plan_cluster(ports, **sizes)
        plans = plan.plan_processes(
            cluster, script, script_arguments, has_evaluator=has_evaluator
        )
        console = Console([process.name for process in plans], os.environ)
        environment = task_environment(
            os.environ, hosts=[task.host for task in cluster.tasks]
        )
        # All of them share this machine's GPUs: none may take all memory.
        environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        log_level = tensorflow_noise.choose_log_level(
            os.environ, wants_everything=wants_tensorflow_logs
        )
        environment[tensorflow_noise.LOG_LEVEL] = log_level
        environment.update(large_pages.variables(environment))
        environment.update(shared_cores.variables(environment))
        # A task may have the port that is reserved for it.
        environment["TF_GRPC_REUSE_PORT"] = "1"
        job = Job(
            plans,
            console,
            environment,
            grace_seconds=grace_seconds,
            evaluator_seconds=evaluator_seconds,
            max_restarts=max_restarts,
            is_quiet=tensorflow_noise.is_quiet(log_level),
        )
        sys.exit(job.run())


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
def serve(**options: float | None) -> None:
    """Be the worker or parameter server that TF_CONFIG names.

    Ends with 0 when the job is over.
    """
    from tfps_plugin.cluster.machine import large_pages
    from tfps_plugin.cluster.serving import task_server

    large_pages.begin_again()
    task_server.main(
        [
            f"--{name.replace('_', '-')}={value}"
            for name, value in options.items()
            if value is not None
        ]
    )

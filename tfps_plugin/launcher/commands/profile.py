"""`tfps profile`: a trace of a worker and of a parameter server."""

import pathlib

import click

from tfps_plugin.launcher.commands.job_choice import chooses_job
from tfps_plugin.monitoring.serving.state_client import StateClient


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=60),
    default=2.0,
    show_default=True,
    help="Length of the trace.",
)
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="JOB:INDEX",
    default=("worker:0", "ps:0"),
    show_default=True,
    help="Task to trace; may be given several times.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    default="profile",
    show_default=True,
    help="Folder for the traces, for tensorboard --logdir.",
)
@chooses_job
def profile(
    client: StateClient,
    seconds: float,
    tasks: tuple[str, ...],
    directory: pathlib.Path,
) -> None:
    """Trace what tasks of a running job do, for TensorBoard.

    A trace has every operation that a task runs, with its time. Tracing slows
    the task down for as long as it takes. This command connects to the tasks
    themselves, so their addresses have to be reachable from here.
    """
    from tfps_plugin.launcher.watching import profiling

    try:
        chosen = profiling.choose(client.state(), tasks)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--task") from error
    for task in chosen:
        click.echo(f"Tracing {task.name} at {task.address} for {seconds:g} s.")
        try:
            files = profiling.trace(task, seconds, directory)
        except OSError as error:
            raise click.ClickException(str(error)) from error
        for file in files:
            click.echo(f"  {file} ({file.stat().st_size / 1e6:.1f} MB)")
    click.echo(
        "Look at it in TensorBoard: pip install tensorboard-plugin-profile, "
        f"then tensorboard --logdir {directory}"
    )

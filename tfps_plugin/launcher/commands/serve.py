"""`tfps serve`: one task of a cluster."""

import click

from tfps_plugin.launcher.commands import help_texts


@click.command()
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
    help=help_texts.LOGICAL_CPUS.format("the worker"),
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
@click.option("--tune", is_flag=True, help=help_texts.TUNE.format("this task"))
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

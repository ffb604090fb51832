"""`tfps serve`: one task of a cluster."""

import os
import sys

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
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="TFPS_LOG_FORMAT",
    default="text",
    show_default=True,
    help=help_texts.LOG_FORMAT,
)
@click.option("--tune", is_flag=True, help=help_texts.TUNE.format("this task"))
def serve(log_format: str, tune: bool, **options: float | int | None) -> None:
    """Be the worker or parameter server that TF_CONFIG names.

    Ends with 0 when the job is over. Only errors of TensorFlow's own log are
    shown, unless TF_CPP_MIN_LOG_LEVEL is set.
    """
    from tfps_plugin.cluster.output import json_lines
    from tfps_plugin.cluster.output import tensorflow_noise

    arguments = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in options.items()
        if value is not None
    ]
    arguments += ["--tune"] if tune else []
    settings = {
        tensorflow_noise.LOG_LEVEL: tensorflow_noise.choose_log_level(
            os.environ, wants_everything=False
        ),
        json_lines.VARIABLE: log_format,
    }
    if log_format == json_lines.JSON:
        from tfps_plugin.launcher import process_plan
        from tfps_plugin.launcher import relayed_task

        process = process_plan.ProcessPlan(
            json_lines.task_name(os.environ),
            (*process_plan.TASK_SERVER, *arguments),
            settings,
        )
        sys.exit(relayed_task.run(process, {**os.environ, **settings}))
    from tfps_plugin.cluster.serving import task_server

    os.environ.update(settings)
    task_server.main(arguments)

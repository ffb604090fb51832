"""`tfps dashboard`: what a job is and does, as a page in the browser."""

import click

from tfps_plugin.launcher.commands.job_choice import chooses_job
from tfps_plugin.monitoring.serving.state_client import StateClient


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8471,
    show_default=True,
    help="Port of the page on this machine; 0 for any free one.",
)
@click.option(
    "--interval",
    "interval_seconds",
    type=click.FloatRange(min=0.5),
    default=0.5,
    show_default=True,
    help="Seconds between two looks at the job.",
)
@chooses_job
def dashboard(client: StateClient, port: int, interval_seconds: float) -> None:
    """Show what a job does on a live page, until Ctrl-C.

    Only this machine can open the page. From another one, use a tunnel: ssh -L
    8471:127.0.0.1:8471 and the name of this machine.
    """
    try:
        from tfps_plugin.dashboard import app
        from tfps_plugin.dashboard.feed import Feed
    except ImportError as error:
        raise click.ClickException(
            f"The page needs another package ({error}). Install it: "
            "pip install 'tfps_plugin[dashboard]'"
        ) from error
    # Tells at once if there is no such job.
    client.state()
    try:
        app.serve(
            Feed(client, interval_seconds),
            port,
            lambda address: click.echo(
                f"The page of the job is at {address} (Ctrl-C ends it)."
            ),
        )
    except OSError as error:
        raise click.ClickException(
            f"The page cannot be served. Expected a free port. Received: "
            f"--port {port}: {error}. Give another one, or 0 for any."
        ) from error

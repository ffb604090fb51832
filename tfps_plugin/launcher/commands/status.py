"""`tfps status`: what a job is and does now, once."""

import click

from tfps_plugin.launcher.commands.job_choice import chooses_job
from tfps_plugin.monitoring.serving.state_client import StateClient


@click.command()
@click.option(
    "--json", "as_json", is_flag=True, help="Print all of it, as JSON."
)
@chooses_job
def status(client: StateClient, as_json: bool) -> None:
    """Show what a job does now: its tasks, its speed, its last events.

    The job runs in another terminal, started in any way: with tfps run, or as
    python train.py. See docs/monitoring.md.
    """
    from tfps_plugin.launcher.watching import terminal_view
    from tfps_plugin.monitoring.state import json_form

    state = client.state()
    if as_json:
        click.echo(json_form.encode(state, indent=2))
    else:
        console = terminal_view.new_console()
        console.print(terminal_view.view(state, console.width))

"""`tfps top`: what a job is and does, live."""

import collections
import contextlib
import threading

import click

from tfps_plugin.launcher.commands.job_choice import chooses_job
from tfps_plugin.monitoring.serving.state_client import StateClient

_HISTORY = 120


@click.command()
@click.option(
    "--interval",
    "interval_seconds",
    type=click.FloatRange(min=0.5),
    default=1.0,
    show_default=True,
    help="Seconds between two looks at the job.",
)
@chooses_job
def top(client: StateClient, interval_seconds: float) -> None:
    """Show what a job does, live, until Ctrl-C or the end of the job."""
    from rich.live import Live

    from tfps_plugin import errors
    from tfps_plugin.launcher.watching import terminal_view

    speeds: collections.deque[float] = collections.deque(maxlen=_HISTORY)
    console = terminal_view.new_console()
    state = client.state()
    ending = ""
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(
            terminal_view.view(state, console.width),
            console=console,
            auto_refresh=False,
            # The last view stays on the terminal, without the ones before.
            transient=False,
            vertical_overflow="crop",
        ) as live,
    ):
        stopped = threading.Event()
        while not stopped.wait(interval_seconds):
            try:
                state = client.state()
            except errors.JobUnreachableError as error:
                # Nobody listens there any more; anything else is told as it is.
                ending = (
                    "The job has ended."
                    if isinstance(
                        error.__cause__, ConnectionError | FileNotFoundError
                    )
                    else str(error)
                )
                break
            speeds.append(state.job.steps_per_second or 0.0)
            live.update(
                terminal_view.view(state, console.width, tuple(speeds)),
                refresh=True,
            )
    if ending:
        console.print(ending)

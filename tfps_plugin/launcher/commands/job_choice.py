"""Options that choose the job to watch; several commands have them."""

import functools
from collections.abc import Callable
from typing import Any

import click

from tfps_plugin import errors
from tfps_plugin.monitoring.serving import state_client
from tfps_plugin.monitoring.serving.state_client import StateClient
from tfps_plugin.strategy import monitoring_options
from tfps_plugin.strategy.monitoring_options import TOKEN_VARIABLE


def chooses_job(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options; the command gets the `client` that they choose."""

    @click.option(
        "--connect",
        metavar="HOST:PORT",
        help="Address of the chief's monitor, for a job of another machine or "
        "user. Without it: the job of yours that runs on this machine.",
    )
    @click.option(
        "--token",
        envvar=TOKEN_VARIABLE,
        help=f"Token of that job. Better: {TOKEN_VARIABLE} in the environment.",
    )
    @click.option(
        "--job",
        "process_id",
        type=int,
        help="Process id of the job's program, if several run here.",
    )
    @functools.wraps(command)
    def with_client(
        connect: str | None,
        token: str | None,
        process_id: int | None,
        **options: Any,
    ) -> None:
        try:
            command(client=_client(connect, token, process_id), **options)
        # Also a state that this release does not understand.
        except errors.TfpsError as error:
            raise click.ClickException(str(error)) from error

    return with_client


def _client(
    connect: str | None, token: str | None, process_id: int | None
) -> StateClient:
    if connect is None:
        return state_client.of_this_machine(process_id)
    host, _, port = connect.rpartition(":")
    if not host or not port.isdecimal():
        raise click.BadParameter(
            f"expected host:port, such as 10.0.0.5:8470; received {connect!r}.",
            param_hint="--connect",
        )
    if token and not monitoring_options.is_sendable(token):
        raise click.BadParameter(
            "expected letters, digits and signs of ASCII, without spaces or "
            "line breaks; the token has others.",
            param_hint="--token",
        )
    return StateClient((host, int(port)), token=token or None)

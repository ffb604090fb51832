"""`tfps probe`: asks a task whether it lives."""

import sys

import click


@click.command()
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="How long to wait for an answer.",
)
@click.argument("address", required=False)
def probe(timeout_seconds: float, address: str | None) -> None:
    """Ask the task at ADDRESS (host:port) whether it lives.

    Without ADDRESS: the worker or parameter server that TF_CONFIG names, on
    this machine. Ends with 0 if it answers, and with 1 otherwise. Made for
    liveness probes of containers.
    """
    from tfps_plugin import errors
    from tfps_plugin.cluster import health
    from tfps_plugin.cluster.machine.ports import LOOPBACK
    from tfps_plugin.cluster.spec import Task
    from tfps_plugin.cluster.spec import join_address
    from tfps_plugin.cluster.spec import split_address
    from tfps_plugin.cluster.tf_config import read_tf_config

    try:
        if address is not None:
            status = health.probe(address, timeout_seconds)
            click.echo(f"{status.task_name} answers at {address}.")
            return
        config = read_tf_config()
        if config is None:
            raise click.UsageError(
                "There is no task to ask. Expected an ADDRESS, or TF_CONFIG "
                "in the environment."
            )
        task = config.task
        # Not by its name: nothing but the task itself is asked for.
        here = join_address(LOOPBACK, split_address(task.address)[1])
        health.probe_task(Task(task.job, task.index, here), timeout_seconds)
        click.echo(f"{task} answers.")
    except errors.ClusterConfigurationError as error:
        raise click.UsageError(str(error)) from error
    except errors.TaskUnreachableError as error:
        click.echo(str(error), err=True)
        sys.exit(1)

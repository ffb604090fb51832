"""`tfps scale`: another size of a job that runs."""

import click


@click.command()
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
    resolver, or with TensorFlow's TFConfigClusterResolver.
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
            "There is nothing to change. Expected --workers, --ps, or both. "
            "Received: neither. Add one, such as --workers 4."
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
            "The job does not answer. Expected an answer of tfps run, process "
            f"{process_id}. Received: {error}. See whether that process still "
            "runs, and call tfps scale again."
        ) from error
    if "error" in answer:
        raise click.ClickException(answer["error"])
    click.echo(answer.get("text", ""))

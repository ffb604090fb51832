"""`tfps plan`: memory, messages and speed of a job before it runs."""

import click


@click.command(context_settings={"allow_interspersed_args": True})
@click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="The number of workers.",
)
@click.option(
    "--ps",
    "num_ps",
    type=click.IntRange(min=1, max=256),
    default=1,
    show_default=True,
    help="The number of parameter servers.",
)
@click.option(
    "--network",
    default="10Gb",
    show_default=True,
    metavar="BITS",
    help="Bits per second of the network of each machine, one way.",
)
@click.option(
    "--latency",
    "latency_milliseconds",
    type=click.FloatRange(min=0),
    default=0.1,
    show_default=True,
    help="Milliseconds that a message takes, besides its bytes.",
)
@click.option(
    "--ps-cores",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="The number of cores of a parameter server.",
)
@click.option(
    "--ps-memory",
    "ps_memory_gib",
    type=click.FloatRange(min=0, min_open=True),
    help="GiB of memory of a parameter server.",
)
@click.option(
    "--cores",
    "shared_cores",
    type=click.FloatRange(min=0, min_open=True),
    help="All tasks share so many cores of one machine, as with `tfps run`.",
)
@click.option(
    "--step-milliseconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Milliseconds that a worker computes a step. Without it, they are "
    "measured on this machine.",
)
@click.option(
    "--steps-per-call",
    type=click.IntRange(min=1),
    help="The number of steps in a call of a worker. Without it, as many as "
    "take a second, up to 100.",
)
@click.option(
    "--no-checkpoints", is_flag=True, help="No checkpoints are written."
)
@click.option(
    "--increments",
    is_flag=True,
    help="Checkpoints are written with full_every, in increments.",
)
@click.option(
    "--costs",
    "costs_path",
    type=click.Path(exists=True, dir_okay=False),
    help="File of costs that the benchmark has measured; see docs/planning.md.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("script_arguments", metavar="[-- ARGUMENTS]...", nargs=-1)
def plan(
    num_workers: int,
    num_ps: int,
    network: str,
    latency_milliseconds: float,
    ps_cores: int,
    ps_memory_gib: float | None,
    shared_cores: float | None,
    step_milliseconds: float | None,
    steps_per_call: int | None,
    no_checkpoints: bool,
    increments: bool,
    costs_path: str | None,
    as_json: bool,
    script: str,
    script_arguments: tuple[str, ...],
) -> None:
    """Plan a job: its memory, its messages, and how fast it may be.

    SCRIPT is the training script as it is. It runs until its first fit(), on a
    small cluster of this machine in which large variables get no values, so
    tables may be larger than this machine. Then its step is looked at, and
    nothing is trained. The script makes a tfps.ParameterServerStrategy()
    without a cluster resolver.
    """
    import contextlib
    import json
    import sys

    import rich.console

    from tfps_plugin import errors
    from tfps_plugin.planning import machines
    from tfps_plugin.planning import tables
    from tfps_plugin.planning.costs import Costs

    try:
        cluster = machines.Machines(
            num_workers=num_workers,
            num_ps=num_ps,
            bits_per_second=machines.bits_per_second(network),
            latency_seconds=latency_milliseconds / 1000,
            ps_cores=ps_cores,
            shared_cores=shared_cores,
            steps_per_call=steps_per_call,
        )
        costs = Costs() if costs_path is None else Costs.read(costs_path)
        # With TensorFlow, so after all that can be wrong before.
        from tfps_plugin.planning import planner

        known = planner.Known(
            step_seconds=step_milliseconds and step_milliseconds / 1000,
            ps_memory_bytes=int(ps_memory_gib * 2**30)
            if ps_memory_gib
            else None,
            checkpoints=not no_checkpoints,
            increments=increments,
        )
        # The script prints, too, and standard output is the plan alone.
        with contextlib.redirect_stdout(sys.stderr):
            made = planner.make(script, script_arguments, cluster, costs, known)
    except errors.PlanError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(made.as_json(), indent=2))
    else:
        tables.show(made, rich.console.Console())

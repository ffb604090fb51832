"""`tfps manifest`: a job for Kubernetes, Compose or Slurm, as text."""

import re
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

_FORMATS = ("jobset", "tfjob", "plain", "compose", "slurm")
# Kind of task: cores and memory unless an option says otherwise, and whether
# it may have GPUs.
_SIZES = {
    "chief": ("2", "4Gi", False),
    "ps": ("4", "8Gi", False),
    "worker": ("4", "8Gi", True),
    "evaluator": ("2", "4Gi", True),
}
_KUBERNETES = ("jobset", "tfjob", "plain")
# Options that some formats have no use for: the formats that have.
_FORMATS_OF = {
    "--user-id": (*_KUBERNETES, "compose"),
    "--secret-env": _KUBERNETES,
    "--max-restarts": tuple(name for name in _FORMATS if name != "tfjob"),
    "--checkpoint-path": (*_KUBERNETES, "compose"),
}
_SECRET_VARIABLE = re.compile(
    r"(?P<name>[^=]+)=(?P<secret>[^/]+)/(?P<key>[-._a-zA-Z0-9]+)"
)
_NAMES = {"ps": "each parameter server", "worker": "each worker"}


def _size_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds options for the cores, memory and GPUs of each kind of task."""
    for kind, (cores, memory, has_gpus) in reversed(_SIZES.items()):
        who = _NAMES.get(kind, f"the {kind}")
        if has_gpus:
            function = click.option(
                f"--{kind}-gpu",
                type=click.IntRange(min=0),
                default=0,
                show_default=True,
                help=f"The number of GPUs of {who}.",
            )(function)
        function = click.option(
            f"--{kind}-memory",
            metavar="AMOUNT",
            default=memory,
            show_default=True,
            help=f"Memory of {who}; one that needs more is killed.",
        )(function)
        function = click.option(
            f"--{kind}-cpu",
            metavar="CORES",
            default=cores,
            show_default=True,
            help=f"Cores of {who}: 4, 0.5 or 500m.",
        )(function)
    return function


@click.command(
    context_settings={
        # What follows the script is the script's.
        "allow_interspersed_args": False,
    }
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(_FORMATS),
    required=True,
    help="JobSet, Kubeflow's TFJob, or Jobs of Kubernetes alone; Docker "
    "Compose; a batch script for Slurm.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="The number of workers.",
)
@click.option(
    "--ps",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="The number of parameter servers.",
)
@click.option(
    "--evaluator",
    "has_evaluator",
    is_flag=True,
    help="Run the script a second time, as the evaluator.",
)
@click.option(
    "--image",
    help="Image of the containers, with the script and tfps_plugin.",
)
@click.option(
    "--name",
    help="Name of the job; by default, that of the script.",
)
@click.option(
    "--namespace",
    help="Namespace of Kubernetes; by default, that of `kubectl apply`.",
)
@_size_options
@click.option(
    "--checkpoint-claim",
    metavar="NAME",
    help="The volume for checkpoints that the chief, the parameter servers "
    "and the evaluator share: a PersistentVolumeClaim with ReadWriteMany, or a "
    "volume of Compose.",
)
@click.option(
    "--checkpoint-path",
    metavar="FOLDER",
    default="/checkpoints",
    show_default=True,
    help="Folder at which tasks see that volume.",
)
@click.option(
    "--port",
    type=int,
    help="Port of every task; 2222 by default. With slurm: of the chief; those "
    "of the other tasks follow. By default the number of the job decides.",
)
@click.option(
    "--drain-seconds",
    type=click.IntRange(min=0),
    default=25,
    show_default=True,
    help="How long a worker may go on after SIGTERM, to end what it runs.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="How often to restart each task that fails; not for a TFJob, which "
    "has no limit.",
)
@click.option(
    "--max-job-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How often to restart the whole job, if its chief fails for good "
    "(jobset only).",
)
@click.option(
    "--env",
    "variables",
    metavar="NAME=VALUE",
    multiple=True,
    help="Environment variable of every task; may be given several times.",
)
@click.option(
    "--secret-env",
    "secret_variables",
    metavar="NAME=SECRET/KEY",
    multiple=True,
    help="Environment variable of every task whose value a Secret of "
    "Kubernetes has; may be given several times.",
)
@click.option(
    "--user-id",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Numeric user that containers run as.",
)
@click.option(
    "--sbatch",
    metavar="OPTION",
    multiple=True,
    help="Option of sbatch for each part of the job, such as "
    "--sbatch=--partition=gpu; may be given several times (slurm only).",
)
@click.argument("script")
@click.argument("script_arguments", metavar="[ARGUMENTS]...", nargs=-1)
@click.pass_context
def manifest(
    context: click.Context,
    /,
    format_name: str,
    workers: int,
    ps: int,
    has_evaluator: bool,
    image: str | None,
    name: str | None,
    namespace: str | None,
    checkpoint_claim: str | None,
    checkpoint_path: str,
    port: int | None,
    drain_seconds: int,
    max_restarts: int,
    max_job_restarts: int,
    variables: tuple[str, ...],
    secret_variables: tuple[str, ...],
    user_id: int,
    sbatch: tuple[str, ...],
    script: str,
    script_arguments: tuple[str, ...],
    **sizes: str | int,
) -> None:
    """Print what runs SCRIPT as the chief of a cluster.

    The text is for `kubectl apply -f`, `docker compose -f` or `sbatch`. SCRIPT
    is its path where it runs: in the image, or on the nodes of Slurm.

    docs/deploy/ says what is in it, and why.
    """
    from tfps_plugin.deployment import formats
    from tfps_plugin.deployment import job as jobs

    _refuse_unused(
        context,
        format_name,
        has_evaluator=has_evaluator,
        has_claim=checkpoint_claim is not None,
    )
    counts = {"chief": 1, "ps": ps, "worker": workers}
    if has_evaluator:
        counts["evaluator"] = 1
    environment = []
    for variable in variables:
        variable_name, equals, value = variable.partition("=")
        if not equals:
            raise click.BadParameter(
                f"expected NAME=VALUE; received {variable!r}",
                param_hint="--env",
            )
        environment.append((variable_name, value))
    secrets = []
    for variable in secret_variables:
        found = _SECRET_VARIABLE.fullmatch(variable)
        if found is None:
            raise click.BadParameter(
                f"expected NAME=SECRET/KEY; received {variable!r}",
                param_hint="--secret-env",
            )
        secrets.append((found["name"], found["secret"], found["key"]))
    try:
        job = jobs.DeployedJob(
            name=jobs.default_name(script) if name is None else name,
            groups=tuple(
                jobs.TaskGroup(kind, count, _resources(kind, sizes))
                for kind, count in counts.items()
            ),
            script=script,
            arguments=script_arguments,
            image=image,
            namespace=namespace,
            port=port,
            checkpoint_claim=checkpoint_claim,
            checkpoint_path=checkpoint_path,
            drain_seconds=drain_seconds,
            max_restarts=max_restarts,
            max_job_restarts=max_job_restarts,
            environment=tuple(environment),
            secrets=tuple(secrets),
            user_id=user_id,
        )
        text = formats.text(format_name, job, sbatch)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    except formats.YamlMissingError as error:
        raise click.ClickException(str(error)) from error
    if checkpoint_claim is None and format_name != "slurm":
        click.echo(
            "Warning: without --checkpoint-claim, what was trained is lost "
            "with the chief or a parameter server.",
            err=True,
        )
    click.echo(text, nl=False)


def _resources(kind: str, sizes: dict[str, Any]) -> Any:
    from tfps_plugin.deployment import quantities
    from tfps_plugin.deployment.job import Resources

    try:
        option = f"--{kind}-cpu"
        millicores = quantities.parse_cores(sizes[f"{kind}_cpu"])
        option = f"--{kind}-memory"
        memory_bytes = quantities.parse_memory(sizes[f"{kind}_memory"])
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    return Resources(millicores, memory_bytes, sizes.get(f"{kind}_gpu", 0))


def _refuse_unused(
    context: click.Context,
    format_name: str,
    *,
    has_evaluator: bool,
    has_claim: bool,
) -> None:
    """Refuses options that are given, but would change nothing."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not ParameterSource.COMMANDLINE:
            continue
        option = parameter.opts[0]
        formats = _FORMATS_OF.get(option, _FORMATS)
        if format_name not in formats:
            raise click.UsageError(
                f"{option} is for --format {' or '.join(formats)}. Received: "
                f"{option} with --format {format_name}"
            )
        if option.startswith("--evaluator-") and not has_evaluator:
            raise click.UsageError(
                f"{option} is for a job with an evaluator. Received: {option} "
                "without --evaluator"
            )
        if option == "--checkpoint-path" and not has_claim:
            raise click.UsageError(
                "--checkpoint-path says where tasks see the volume of "
                "--checkpoint-claim. Received: --checkpoint-path without it"
            )

"""The formats of manifests by name, and their text."""

import json
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from tfps_plugin.deployment import compose
from tfps_plugin.deployment import jobset
from tfps_plugin.deployment import plain
from tfps_plugin.deployment import slurm
from tfps_plugin.deployment import tfjob
from tfps_plugin.deployment.job import DeployedJob

_KUBERNETES = {
    "jobset": jobset.documents,
    "tfjob": tfjob.documents,
    "plain": plain.documents,
}
NAMES = (*_KUBERNETES, "compose", "slurm")


class YamlMissingError(ImportError):
    """PyYAML is not installed."""


def text(format_name: str, job: DeployedJob, sbatch: Sequence[str] = ()) -> str:
    """Returns the manifest of a job.

    Args:
        format_name: One of `NAMES`.
        job: The job.
        sbatch: Options of `sbatch`, for Slurm only.

    Raises:
        ValueError: If the job cannot be had in this format; the message names
            the option.
        YamlMissingError: If PyYAML is not installed.
    """
    if format_name == "slurm":
        return slurm.script(job, sbatch)
    if sbatch:
        raise ValueError(
            "--sbatch is for --format slurm only. Received: --sbatch="
            f"{sbatch[0]} with --format {format_name}"
        )
    if format_name == "compose":
        return _yaml([compose.document(job)])
    return _yaml(_KUBERNETES[format_name](job))


def _yaml(documents: Sequence[Mapping[str, Any]]) -> str:
    try:
        import yaml
    except ImportError as error:
        raise YamlMissingError(
            "YAML needs the package PyYAML, which is not installed. Install "
            "it with: pip install 'tfps_plugin[deploy]'"
        ) from error
    found: str = yaml.safe_dump_all(
        # Copies: what appears twice would be written once, and referred to.
        json.loads(json.dumps(documents)),
        sort_keys=False,
        # A TF_CONFIG is one line.
        width=2**20,
    )
    return found

"""Jobs for tests of this package."""

from typing import Any

from tfps_plugin.deployment.job import DeployedJob
from tfps_plugin.deployment.job import Resources
from tfps_plugin.deployment.job import TaskGroup


def make_job(
    *, workers: int = 3, ps: int = 2, evaluator: bool = False, **options: Any
) -> DeployedJob:
    """Returns a job with some default for everything.

    Args:
        workers: The number of workers.
        ps: The number of parameter servers.
        evaluator: Whether there is an evaluator.
        **options: Other fields of the job.
    """
    counts = {"chief": 1, "ps": ps, "worker": workers}
    if evaluator:
        counts["evaluator"] = 1
    groups = tuple(
        TaskGroup(
            kind, count, Resources(2000, 4 * 2**30, int(kind == "worker"))
        )
        for kind, count in counts.items()
    )
    return DeployedJob(
        **{
            "name": "ranking",
            "groups": groups,
            "script": "train.py",
            "arguments": ("--epochs", "3"),
            "image": "registry.example.com/ranking:1",
            **options,
        }
    )

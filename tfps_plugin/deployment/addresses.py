"""Addresses of the tasks of a job, and the `TF_CONFIG` of each."""

import json
from collections.abc import Callable

from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import join_address
from tfps_plugin.deployment.job import DeployedJob

# TensorFlow's customary port.
DEFAULT_PORT = 2222


def port(job: DeployedJob) -> int:
    """Returns the port of every task, where each has a host of its own."""
    return DEFAULT_PORT if job.port is None else job.port


def cluster_of(
    job: DeployedJob, host: Callable[[str, int], str]
) -> ClusterSpec:
    """Returns the cluster of a job whose tasks have hosts of their own.

    Args:
        job: The job.
        host: Returns the host of a task, by its kind and index.
    """
    return ClusterSpec.from_dict(
        {
            kind: [
                join_address(host(kind, index), port(job))
                for index in range(job.count(kind))
            ]
            for kind in (CHIEF, PARAMETER_SERVER, WORKER)
        }
    )


def tf_config(cluster: ClusterSpec, kind: str, index: int | str) -> str:
    """Returns the text of a `TF_CONFIG`.

    Args:
        cluster: The cluster.
        kind: The kind of the task; an evaluator is none of the cluster.
        index: Its index, or a reference to a variable with the index.
    """
    return json.dumps(
        {
            "cluster": cluster.as_dict(),
            "task": {"type": kind, "index": index},
        }
    )

"""Reads and writes `TF_CONFIG`, and reads cluster resolvers.

It reports mistakes in the description of a process before anything is started;
each error names the field and its value.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.cluster.spec import OLD_NAME_OF_CHIEF
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import TASK_JOBS
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import TaskConfig


def parse_tf_config(text: str) -> TaskConfig:
    """Reads the text of a `TF_CONFIG`.

    Args:
        text: JSON with `cluster` and `task`; other keys are ignored.

    Returns:
        The role of this process. A chief (or evaluator) need not be listed in
        the cluster: it finds its own address.

    Raises:
        ClusterConfigurationError: If the text is not such JSON; the message
            names the field and the value.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise errors.ClusterConfigurationError(
            f"TF_CONFIG is not valid JSON: {error}. Received: "
            f"TF_CONFIG={text!r}"
        ) from error
    if not isinstance(config, dict):
        raise errors.ClusterConfigurationError(
            "TF_CONFIG must be a JSON object with `cluster` and `task`. "
            f"Received: TF_CONFIG={text!r}"
        )
    if not config.get("cluster"):
        raise errors.ClusterConfigurationError(
            'TF_CONFIG has no cluster. Expected `"cluster": {"worker": '
            '["host:port", ...], "ps": [...]}`. Received: '
            f"cluster={config.get('cluster')!r}. To train without a cluster, "
            "unset TF_CONFIG."
        )
    cluster = ClusterSpec.from_dict(config["cluster"])
    task = config.get("task")
    if not isinstance(task, dict) or "type" not in task:
        raise errors.ClusterConfigurationError(
            "TF_CONFIG does not say which task this process is. Expected "
            '`"task": {"type": "worker", "index": 0}` with one of the types '
            f"{', '.join(TASK_JOBS)}. Received: task={task!r}"
        )
    return _task_config(
        cluster,
        job=task["type"],
        index=task.get("index", 0),
        job_field="task.type",
        index_field="task.index",
    )


def read_tf_config(
    environ: Mapping[str, str] | None = None,
) -> TaskConfig | None:
    """Reads `TF_CONFIG` of an environment; None if it is unset or empty.

    Args:
        environ: The environment; None is this process's own.

    Raises:
        ClusterConfigurationError: As `parse_tf_config`.
    """
    environ = os.environ if environ is None else environ
    text = environ.get("TF_CONFIG", "").strip()
    return parse_tf_config(text) if text else None


def to_tf_config(
    cluster: ClusterSpec, job: str, index: int, evaluator: bool = False
) -> str:
    """Returns the `TF_CONFIG` that makes a process this task of `cluster`.

    Args:
        cluster: The cluster.
        job: `"chief"`, `"worker"`, `"ps"` or `"evaluator"`.
        index: Its number within the job, from 0.
        evaluator: Whether an evaluator runs beside the cluster. It is then
            listed without an address, because it serves nothing.

    Raises:
        ClusterConfigurationError: If the cluster has no such task.
    """
    config = _task_config(cluster, job, index, "job", "index")
    jobs = cluster.as_dict()
    if evaluator:
        jobs[EVALUATOR] = []
    return json.dumps(
        {
            "cluster": jobs,
            "task": {"type": config.job, "index": config.index},
        }
    )


def from_cluster_resolver(resolver: Any) -> TaskConfig:
    """Reads a `tf.distribute.cluster_resolver.ClusterResolver`.

    Args:
        resolver: Any object with `cluster_spec()`, `task_type` and `task_id`.
            A resolver that does not name this task is the chief's: no
            other task creates a strategy.

    Raises:
        ClusterConfigurationError: If it describes no usable cluster.
    """
    cluster_spec = resolver.cluster_spec()
    jobs = cluster_spec.as_dict() if cluster_spec else {}
    if not jobs:
        raise errors.ClusterConfigurationError(
            "The cluster resolver describes an empty cluster. Expected at "
            "least one worker and one ps. Received: "
            f"cluster_resolver={type(resolver).__name__} with "
            f"cluster_spec={jobs!r}"
        )
    return _task_config(
        ClusterSpec.from_dict(jobs),
        job=getattr(resolver, "task_type", None) or CHIEF,
        index=getattr(resolver, "task_id", None) or 0,
        job_field="cluster_resolver.task_type",
        index_field="cluster_resolver.task_id",
    )


def _task_config(
    cluster: ClusterSpec, job: Any, index: Any, job_field: str, index_field: str
) -> TaskConfig:
    if job == OLD_NAME_OF_CHIEF:
        job = CHIEF
    if job not in TASK_JOBS:
        raise errors.ClusterConfigurationError(
            f"{job_field} is unknown. Expected one of "
            f"{', '.join(TASK_JOBS)}. Received: {job_field}={job!r}"
        )
    number = _read_index(index)
    num_tasks = {
        WORKER: len(cluster.worker_addresses),
        PARAMETER_SERVER: len(cluster.ps_addresses),
        CHIEF: 1,
    }.get(job)
    if number is None or (num_tasks is not None and number >= num_tasks):
        limit = (
            "a number from 0"
            if num_tasks is None
            else f"a number from 0 to {num_tasks - 1} ({job} has {num_tasks})"
        )
        raise errors.ClusterConfigurationError(
            f"{index_field} is out of range for job {job!r}. Expected "
            f"{limit}. Received: {index_field}={index!r}"
        )
    return TaskConfig(cluster, job, number)


def _read_index(index: Any) -> int | None:
    """Returns a task index as an integer; None if it is not one."""
    if isinstance(index, str) and index.isdecimal():
        return int(index)
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        return None
    return index

"""A Compose file: a service for each task, named like its host."""

from typing import Any

from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.deployment import addresses
from tfps_plugin.deployment import quantities
from tfps_plugin.deployment.job import SERVING
from tfps_plugin.deployment.job import WITH_CHECKPOINTS
from tfps_plugin.deployment.job import DeployedJob
from tfps_plugin.deployment.job import TaskGroup

_ALONE = frozenset({CHIEF, EVALUATOR})


def document(job: DeployedJob) -> dict[str, Any]:
    """Returns the Compose file of a job.

    Args:
        job: The job.

    Raises:
        ValueError: If there is no image, or the job has what Compose does not.
    """
    if not job.image:
        raise ValueError(
            "--image is missing. Expected the image that has the script and "
            "tfps_plugin, such as --image ranking:1."
        )
    if job.namespace is not None:
        raise ValueError(
            "--namespace is for Kubernetes; Compose has projects, named after "
            f"--name. Received: --namespace {job.namespace}"
        )
    if job.max_job_restarts:
        raise ValueError(
            "--max-job-restarts is not for --format compose. Received: "
            f"--max-job-restarts {job.max_job_restarts}"
        )
    found: dict[str, Any] = {
        "name": job.name,
        "services": {
            _service_name(group.kind, index): _service(job, group, index)
            for group, index in job.tasks()
        },
    }
    if job.checkpoint_claim is not None:
        found["volumes"] = {job.checkpoint_claim: {}}
    return found


def _service_name(kind: str, index: int) -> str:
    return kind if kind in _ALONE else f"{kind}-{index}"


def _service(job: DeployedJob, group: TaskGroup, index: int) -> dict[str, Any]:
    cluster = addresses.cluster_of(job, _service_name)
    service: dict[str, Any] = {
        "image": job.image,
        "entrypoint": [],
        "command": [_escaped(word) for word in job.command(group.kind)],
        "environment": {
            "TF_CONFIG": addresses.tf_config(cluster, group.kind, index),
            "PYTHONUNBUFFERED": "1",
            **{name: _escaped(value) for name, value in job.environment},
        },
        # Process 1 does not get SIGTERM unless it asks for it.
        "init": True,
        "restart": f"on-failure:{job.max_restarts}",
        "stop_grace_period": f"{job.grace_seconds}s",
        "user": f"{job.user_id}:{job.user_id}",
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "deploy": {"resources": _resources(group)},
    }
    if job.max_restarts == 0:
        service["restart"] = "no"
    if group.kind in SERVING:
        service["healthcheck"] = {
            "test": ["CMD", "tfps", "probe"],
            "interval": "60s",
            "timeout": "20s",
            "retries": 3,
            "start_period": "300s",
        }
    if job.checkpoint_claim is not None and group.kind in WITH_CHECKPOINTS:
        service["volumes"] = [
            {
                "type": "volume",
                "source": job.checkpoint_claim,
                "target": _escaped(job.checkpoint_path),
            }
        ]
    return service


def _escaped(text: str) -> str:
    """Returns a text in which Compose replaces nothing."""
    return text.replace("$", "$$")


def _resources(group: TaskGroup) -> dict[str, Any]:
    mebibytes = quantities.whole_mebibytes(group.resources.memory_bytes)
    resources: dict[str, Any] = {
        "limits": {
            "cpus": f"{group.resources.millicores / 1000:g}",
            "memory": f"{mebibytes}m",
        }
    }
    if group.resources.gpus:
        resources["reservations"] = {
            "devices": [
                {
                    "driver": "nvidia",
                    "count": group.resources.gpus,
                    "capabilities": ["gpu"],
                }
            ]
        }
    return resources

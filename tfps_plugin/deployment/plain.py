"""Objects of Kubernetes alone: a Job for each kind of task, and a Service."""

from typing import Any

from tfps_plugin.deployment import addresses
from tfps_plugin.deployment import indexed_jobs
from tfps_plugin.deployment import network_policy
from tfps_plugin.deployment import pods
from tfps_plugin.deployment.job import DeployedJob


def documents(job: DeployedJob) -> list[dict[str, Any]]:
    """Returns the objects of a job.

    Args:
        job: The job.

    Returns:
        A `NetworkPolicy`, a headless `Service` and a `Job` for each kind of
        task.

    Raises:
        ValueError: If names would be too long, or there is no image.
    """
    cluster = indexed_jobs.cluster_of(job)
    jobs = []
    for group in job.groups:
        # An evaluator has the limit, too: nothing else ends one that always
        # fails, as without a checkpoint of a chief that has failed.
        spec = indexed_jobs.job_spec(job, group, cluster, job.max_restarts)
        spec["template"]["spec"]["subdomain"] = job.name
        jobs.append(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": pods.metadata(job, f"{job.name}-{group.kind}"),
                "spec": spec,
            }
        )
    return [network_policy.document(job), _service(job), *jobs]


def _service(job: DeployedJob) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pods.metadata(job, job.name),
        "spec": {
            # Each pod has a name of its own; no calls are shared out.
            "clusterIP": "None",
            # Tasks look for one another before they are ready.
            "publishNotReadyAddresses": True,
            "selector": pods.labels(job),
            "ports": [{"name": "grpc", "port": addresses.port(job)}],
        },
    }

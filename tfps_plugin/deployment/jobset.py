"""A JobSet of Kubernetes: a replicated job for each kind of task."""

from typing import Any

from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.deployment import indexed_jobs
from tfps_plugin.deployment import network_policy
from tfps_plugin.deployment import pods
from tfps_plugin.deployment.job import DeployedJob

# A JobSet fails with any of its Jobs, and nothing depends on an evaluator. It
# cannot go on without end: a JobSet that is over deletes its pods.
_WITHOUT_LIMIT = 2**31 - 1


def documents(job: DeployedJob) -> list[dict[str, Any]]:
    """Returns the objects of a job.

    Args:
        job: The job.

    Returns:
        A `NetworkPolicy` and a `JobSet`.

    Raises:
        ValueError: If names would be too long, or there is no image.
    """
    # Hosts are called JOBSET-KIND-0-INDEX.
    cluster = indexed_jobs.cluster_of(job, "-0")
    spec: dict[str, Any] = {
        "network": {
            "enableDNSHostnames": True,
            "publishNotReadyAddresses": True,
        },
        # Workers and parameter servers end with the chief.
        "successPolicy": {
            "operator": "All",
            "targetReplicatedJobs": [
                CHIEF,
                *([EVALUATOR] if job.has_evaluator else []),
            ],
        },
    }
    if job.max_job_restarts:
        spec["failurePolicy"] = {"maxRestarts": job.max_job_restarts}
    spec["replicatedJobs"] = [
        {
            "name": group.kind,
            "replicas": 1,
            "template": {
                "spec": indexed_jobs.job_spec(
                    job,
                    group,
                    cluster,
                    _WITHOUT_LIMIT
                    if group.kind == EVALUATOR
                    else job.max_restarts,
                ),
            },
        }
        for group in job.groups
    ]
    return [
        network_policy.document(job),
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": pods.metadata(job, job.name),
            "spec": spec,
        },
    ]

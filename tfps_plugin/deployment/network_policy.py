"""A network policy that lets only the pods of a job reach one another."""

from typing import Any

from tfps_plugin.deployment import pods
from tfps_plugin.deployment.job import DeployedJob


def document(job: DeployedJob) -> dict[str, Any]:
    """Returns the `NetworkPolicy` of a job."""
    own_pods = {"podSelector": {"matchLabels": pods.labels(job)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": pods.metadata(job, job.name),
        "spec": {
            **own_pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [own_pods]}],
        },
    }

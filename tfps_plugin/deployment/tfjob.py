"""A TFJob of Kubeflow's Training Operator, which writes `TF_CONFIG` itself."""

from typing import Any

from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.cluster.spec import EVALUATOR
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.deployment import network_policy
from tfps_plugin.deployment import pods
from tfps_plugin.deployment.job import DeployedJob

_REPLICA_TYPES = {
    CHIEF: "Chief",
    PARAMETER_SERVER: "PS",
    WORKER: "Worker",
    EVALUATOR: "Evaluator",
}
# The operator looks for these names.
_CONTAINER = "tensorflow"
_PORT = "tfjob-port"


def documents(job: DeployedJob) -> list[dict[str, Any]]:
    """Returns the objects of a job.

    Args:
        job: The job.

    Returns:
        A `NetworkPolicy` and a `TFJob`.

    Raises:
        ValueError: If names would be too long, there is no image, or the whole
            job is to be restarted.
    """
    if job.max_job_restarts:
        raise ValueError(
            "--max-job-restarts is not for --format tfjob: a TFJob restarts "
            "its tasks, never the whole job. Received: --max-job-restarts "
            f"{job.max_job_restarts}"
        )
    job.check_host_names(
        *(f"{job.name}-{group.kind}-{group.count - 1}" for group in job.groups)
    )
    replicas = {
        _REPLICA_TYPES[group.kind]: {
            "replicas": group.count,
            # From 128 on (killed, or terminated: 143) a new pod comes; others,
            # such as that of an exception, would come again.
            "restartPolicy": (
                "OnFailure" if group.kind == EVALUATOR else "ExitCode"
            ),
            "template": pods.pod_template(
                job, group, [], container=_CONTAINER, port_name=_PORT
            ),
        }
        for group in job.groups
    }
    return [
        network_policy.document(job),
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "TFJob",
            "metadata": pods.metadata(job, job.name),
            "spec": {
                "runPolicy": {
                    # An evaluator goes on to the last checkpoint; it, and the
                    # other tasks, end by themselves.
                    "cleanPodPolicy": (
                        "None" if job.has_evaluator else "Running"
                    ),
                },
                "tfReplicaSpecs": replicas,
            },
        },
    ]

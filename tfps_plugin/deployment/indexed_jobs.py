"""A Kubernetes Job for all tasks of a kind; its indices are theirs."""

from typing import Any

from tfps_plugin.cluster.serving.chief_watch import EXIT_NO_CHIEF
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.deployment import addresses
from tfps_plugin.deployment import pods
from tfps_plugin.deployment.job import SERVING
from tfps_plugin.deployment.job import DeployedJob
from tfps_plugin.deployment.job import TaskGroup

_INDEX = "TFPS_TASK_INDEX"
_INDEX_FIELD = (
    "metadata.annotations['batch.kubernetes.io/job-completion-index']"
)
# Pods have five random characters more in their names than their hosts.
_SUFFIX = "-12345"


def cluster_of(job: DeployedJob, infix: str = "") -> ClusterSpec:
    """Returns the cluster of a job whose hosts a headless service names.

    The service is called like the job.

    Args:
        job: The job.
        infix: The part of a host's name between the kind of its task and the
            index.

    Raises:
        ValueError: If names would be too long.
    """

    def host(kind: str, index: int) -> str:
        return f"{job.name}-{kind}{infix}-{index}"

    job.check_host_names(
        *(host(group.kind, group.count - 1) + _SUFFIX for group in job.groups)
    )
    domain = pods.service_domain(job, job.name)
    return addresses.cluster_of(
        job, lambda kind, index: f"{host(kind, index)}.{domain}"
    )


def job_spec(
    job: DeployedJob, group: TaskGroup, cluster: ClusterSpec, max_restarts: int
) -> dict[str, Any]:
    """Returns the specification of the Job that runs a group.

    A pod is replaced when it has ended with a failure, never beside one that
    still runs. The name of its host stays.

    Args:
        job: The job.
        group: Its tasks of one kind.
        cluster: The cluster of the job.
        max_restarts: The number of restarts of each task.

    Returns:
        A `JobSpec`. Its pods have no subdomain.
    """
    template = pods.pod_template(
        job,
        group,
        [
            {
                "name": _INDEX,
                "valueFrom": {"fieldRef": {"fieldPath": _INDEX_FIELD}},
            },
            {
                "name": "TF_CONFIG",
                "value": addresses.tf_config(
                    cluster, group.kind, f"$({_INDEX})"
                ),
            },
        ],
    )
    # What the policy for failures below asks for.
    template["spec"]["restartPolicy"] = "Never"
    rules: list[dict[str, Any]] = [
        # Evicted, preempted, or its node is gone: no failure of the task.
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
    ]
    if group.kind in SERVING:
        # The chief has stayed away for too long; a new task would wait, too.
        rules.append(
            {
                "action": "FailJob",
                "onExitCodes": {"operator": "In", "values": [EXIT_NO_CHIEF]},
            }
        )
    return {
        "completionMode": "Indexed",
        "completions": group.count,
        "parallelism": group.count,
        "backoffLimitPerIndex": max_restarts,
        "podFailurePolicy": {"rules": rules},
        "template": template,
    }

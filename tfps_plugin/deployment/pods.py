"""The pod of a task, for everything that runs on Kubernetes."""

from typing import Any

from tfps_plugin.cluster.spec import CHIEF
from tfps_plugin.deployment import addresses
from tfps_plugin.deployment import quantities
from tfps_plugin.deployment.job import SERVING
from tfps_plugin.deployment.job import WITH_CHECKPOINTS
from tfps_plugin.deployment.job import DeployedJob
from tfps_plugin.deployment.job import TaskGroup

_VOLUME = "checkpoints"
_GPU = "nvidia.com/gpu"
# A task imports TensorFlow, perhaps from a slow disk, before it serves.
_PORT_CHECK_SECONDS = 5
_START_SECONDS = 300
# Three minutes without an answer: a task that hangs is found long before the
# chief gives it up (600 s), and one that computes hard is not.
_LIVENESS_SECONDS = 60
_LIVENESS_TIMEOUT_SECONDS = 20


def labels(job: DeployedJob, kind: str | None = None) -> dict[str, str]:
    """Returns the labels of a job's objects, or of its tasks of a kind.

    Args:
        job: The job.
        kind: The kind of tasks; None: labels that all of them have.
    """
    found = {
        "app.kubernetes.io/name": "tfps",
        "app.kubernetes.io/instance": job.name,
    }
    if kind is not None:
        found["app.kubernetes.io/component"] = kind
    return found


def metadata(job: DeployedJob, name: str) -> dict[str, Any]:
    """Returns the metadata of an object of the job.

    Args:
        job: The job.
        name: The name of the object.
    """
    found: dict[str, Any] = {"name": name}
    if job.namespace is not None:
        found["namespace"] = job.namespace
    found["labels"] = labels(job)
    return found


def service_domain(job: DeployedJob, service: str) -> str:
    """Returns the domain of pods that a headless service gives names.

    Without a namespace it is relative to that of the pods.
    """
    if job.namespace is None:
        return service
    return f"{service}.{job.namespace}.svc"


def pod_template(
    job: DeployedJob,
    group: TaskGroup,
    environment: list[dict[str, Any]],
    *,
    container: str = "task",
    port_name: str = "grpc",
) -> dict[str, Any]:
    """Returns the template of the pods of a group.

    Args:
        job: The job.
        group: Its tasks of one kind.
        environment: Variables that the kind of the object needs, before those
            of the job.
        container: Name of the container.
        port_name: Name of the container's port.

    Returns:
        Metadata and specification, without a restart policy.

    Raises:
        ValueError: If the job has no image.
    """
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": job.grace_seconds,
        # Otherwise the script is process 1, which does not get SIGTERM.
        "shareProcessNamespace": True,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": job.user_id,
            "runAsGroup": job.user_id,
            "fsGroup": job.user_id,
            # Large volumes are not walked through at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            _container(job, group, environment, container, port_name)
        ],
    }
    if _mounts_checkpoints(job, group):
        spec["volumes"] = [
            {
                "name": _VOLUME,
                "persistentVolumeClaim": {"claimName": job.checkpoint_claim},
            }
        ]
    return {"metadata": {"labels": labels(job, group.kind)}, "spec": spec}


def _container(
    job: DeployedJob,
    group: TaskGroup,
    environment: list[dict[str, Any]],
    name: str,
    port_name: str,
) -> dict[str, Any]:
    if not job.image:
        raise ValueError(
            "--image is missing. Expected the image that has the script and "
            "tfps_plugin, such as --image registry.example.com/ranking:1."
        )
    container: dict[str, Any] = {
        "name": name,
        "image": job.image,
        "command": [escaped(word) for word in job.command(group.kind)],
        "env": [
            *environment,
            # Lines of the log appear when they are written.
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            *(
                {"name": name, "value": escaped(value)}
                for name, value in job.environment
            ),
            *(
                {
                    "name": name,
                    "valueFrom": {"secretKeyRef": {"name": secret, "key": key}},
                }
                for name, secret, key in job.secrets
            ),
        ],
        "resources": _resources(group),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if group.kind in SERVING or group.kind == CHIEF:
        container["ports"] = [
            {"name": port_name, "containerPort": addresses.port(job)}
        ]
    if group.kind in SERVING:
        container |= _probes(port_name)
    if _mounts_checkpoints(job, group):
        container["volumeMounts"] = [
            {"name": _VOLUME, "mountPath": job.checkpoint_path}
        ]
    return container


def escaped(text: str) -> str:
    """Returns a text in which Kubernetes replaces nothing."""
    # Two of them are one, also where no reference follows.
    return text.replace("$", "$$")


def _mounts_checkpoints(job: DeployedJob, group: TaskGroup) -> bool:
    return job.checkpoint_claim is not None and group.kind in WITH_CHECKPOINTS


def _resources(group: TaskGroup) -> dict[str, Any]:
    amounts = {
        "cpu": quantities.cores_text(group.resources.millicores),
        "memory": quantities.memory_text(group.resources.memory_bytes),
    }
    if group.resources.gpus:
        amounts[_GPU] = str(group.resources.gpus)
    return {"requests": amounts, "limits": amounts}


def _probes(port_name: str) -> dict[str, Any]:
    check = {
        "tcpSocket": {"port": port_name},
        "periodSeconds": _PORT_CHECK_SECONDS,
    }
    return {
        "startupProbe": {
            **check,
            "failureThreshold": _START_SECONDS // _PORT_CHECK_SECONDS,
        },
        "readinessProbe": check,
        # A process that hangs keeps its port, so that liveness asks the server.
        "livenessProbe": {
            "exec": {"command": ["tfps", "probe"]},
            "periodSeconds": _LIVENESS_SECONDS,
            "timeoutSeconds": _LIVENESS_TIMEOUT_SECONDS,
            "failureThreshold": 3,
        },
    }

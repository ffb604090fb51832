"""`tfps.init()`: one call for a program that all tasks of a job run."""

import dataclasses

from tfps_plugin.cluster import environment
from tfps_plugin.cluster import spec
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.serving import task_server


@dataclasses.dataclass(frozen=True)
class RunningTask:
    """Task that this program runs as.

    Attributes:
        job: `"chief"` or `"evaluator"`.
        index: The task's number within the job.
    """

    job: str
    index: int


def init(
    *,
    chief_start_timeout_seconds: float = (
        task_server.CHIEF_START_TIMEOUT_SECONDS
    ),
    chief_grace_seconds: float = task_server.CHIEF_GRACE_SECONDS,
    drain_seconds: float = task_server.DRAIN_SECONDS,
) -> RunningTask:
    """Serves, if this process is a worker or ps; otherwise returns at once.

    Call it first in a program that all tasks of a job run. `TF_CONFIG` says
    which task this process is. A worker or parameter server serves inside this
    call until the job is over, and then exits with code 0: the call never
    returns there. The chief and the evaluator go on.

    `TFPS_TUNE=1` in the environment tunes the machine for a worker or ps
    (docs/tuning_the_machine.md).

    Args:
        chief_start_timeout_seconds: The time for which a worker or ps waits for
            the chief to connect.
        chief_grace_seconds: The time for which it waits for a chief that has
            died.
        drain_seconds: The time that a worker has after SIGTERM to end what it
            runs, before it ends with exit code 143. Less than whoever sends
            SIGTERM waits before SIGKILL.

    Returns:
        The task; the chief if `TF_CONFIG` is not set.

    Raises:
        ClusterConfigurationError: If `TF_CONFIG` describes no usable cluster.

    Threading: call it on the main thread.
    """
    config = tf_config.read_tf_config()
    if config is None:
        return RunningTask(spec.CHIEF, 0)
    if config.job in (spec.WORKER, spec.PARAMETER_SERVER):
        task_server.serve(
            config,
            chief_start_timeout_seconds=chief_start_timeout_seconds,
            chief_grace_seconds=chief_grace_seconds,
            drain_seconds=drain_seconds,
        )
    if config.job == spec.CHIEF:
        environment.apply_chief_environment(
            task.host for task in config.cluster.tasks
        )
    return RunningTask(config.job, config.index)

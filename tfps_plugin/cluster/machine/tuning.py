"""Settings of the machine that tasks have only if the user asks for them.

Without `TFPS_TUNE=1`, `--tune` or `LocalCluster(tune=True)` nothing here
changes anything. docs/tuning_the_machine.md says what each setting does and
costs.
"""

import contextlib
import logging
import os
import pathlib
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping

from tfps_plugin.cluster import spec
from tfps_plugin.cluster.machine import core_shares
from tfps_plugin.cluster.machine import malloc_settings
from tfps_plugin.cluster.machine import usable_cores

VARIABLE = "TFPS_TUNE"
"""The environment variable that switches the settings on."""

_logger = logging.getLogger("tfps_plugin.cluster")

_ON, _OFF = "1", "0"
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_NO_GPU = ("", "-1")
_GPU_DEVICES = ("nvidia[0-9]*", "kfd")


def is_on(environment: Mapping[str, str]) -> bool:
    """Returns whether the environment asks for the settings."""
    return environment.get(VARIABLE, _OFF) not in ("", _OFF)


def task_variables(
    environment: Mapping[str, str], *, tune: bool
) -> dict[str, str]:
    """Returns environment variables for the process of a task.

    Args:
        environment: The environment of the new process so far.
        tune: Whether to tune the task.

    Returns:
        The variables to add, among them the settings of malloc, which a process
        can have only from its environment.
    """
    if not tune:
        return {VARIABLE: _OFF}
    return {VARIABLE: _ON, **malloc_settings.variables(environment)}


def task_arguments(
    cluster: spec.ClusterSpec, task: spec.Task, *, tune: bool
) -> tuple[str, ...]:
    """Returns arguments for the process of a task: the cores that it keeps to.

    Only the process that starts all tasks of a machine can choose them: no
    other one knows that the tasks may use the same cores. Workers share the
    cores with each other, and so do parameter servers. The two jobs overlap, as
    they mostly wait for each other.

    Args:
        cluster: A cluster of which all tasks run on this machine.
        task: One of its workers or parameter servers.
        tune: Whether to tune the task.

    Returns:
        The arguments for `task_server`. None under a CPU quota below the number
        of cores, which limits time and not cores: other containers may well use
        the same cores.
    """
    cores = usable_cores.allowed_cores()
    if not tune or usable_cores.usable_cores() < len(cores):
        return ()
    count = sum(each.job == task.job for each in cluster.tasks)
    groups = core_shares.physical_cores(cores)
    share = core_shares.share(task.index, count, groups)
    return ("--cores", *map(str, sorted(share)))


@contextlib.contextmanager
def applied(
    job: str, cores: Collection[int], environment: Mapping[str, str]
) -> Iterator[None]:
    """Tunes how threads that start inside the context are scheduled.

    They keep to the task's cores, and belong to a batch job: when one wakes up,
    it does not interrupt the thread that runs. If the system refuses a setting,
    a line at INFO says so, and the task goes on without it. So does a line that
    names the settings of malloc that this process has begun without.

    Args:
        job: "worker" or "ps". Workers that see a GPU stay as they are.
        cores: The task's cores; none: the threads run on any core.
        environment: The environment of this process. A scheduling policy and
            settings of malloc that a user has chosen win.

    Threading: changes the calling thread, and restores it at the end, so that
    threads and processes that start afterwards are scheduled as usual.
    """
    for name, value in malloc_settings.variables(environment).items():
        _logger.info(
            "The memory of this task is not tuned. To tune it, start the task "
            "with %s=%s in its environment.",
            name,
            value,
        )
    if job == spec.WORKER and sees_gpu(environment):
        _logger.info("The worker sees a GPU: it keeps the usual scheduling.")
        yield
        return
    with contextlib.ExitStack() as restore:
        if cores:
            _attempt("the CPU affinity", lambda: _set_affinity(cores, restore))
        _attempt("the scheduling policy", lambda: _set_batch(restore))
        yield


def sees_gpu(
    environment: Mapping[str, str], devices: pathlib.Path = pathlib.Path("/dev")
) -> bool:
    """Returns whether a process can use a GPU, without loading its driver.

    Args:
        environment: The environment of the process.
        devices: The folder of device files.
    """
    if any(environment.get(name) in _NO_GPU for name in _GPU_VARIABLES):
        return False
    return any(any(devices.glob(pattern)) for pattern in _GPU_DEVICES)


def _attempt(setting: str, change: Callable[[], None]) -> None:
    try:
        change()
    except (OSError, AttributeError) as error:
        # A sandbox may refuse any system call; other systems have none.
        _logger.info("Tuning goes on without %s: %s.", setting, error)


def _set_affinity(
    cores: Collection[int], restore: contextlib.ExitStack
) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    restore.callback(
        _attempt,
        "restoring the CPU affinity",
        lambda: os.sched_setaffinity(0, before),
    )


def _set_batch(restore: contextlib.ExitStack) -> None:
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    restore.callback(
        _attempt,
        "restoring the scheduling policy",
        lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
    )

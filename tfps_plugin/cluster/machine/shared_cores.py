"""Has the tasks of a job on one machine share its cores without a fuss.

A step goes back and forth between a worker and its parameter servers many
times. Where they are free to run anywhere, Linux moves each to whichever core
is idle at that moment: it then wakes another core, and finds nothing of what
it needs in that core's caches. So each task keeps to cores of its own.

On one core, who is woken by a message interrupts who computes, and each finds
its caches full of the other's numbers. So tasks are batch jobs to Linux: who
wakes waits until the other one waits, or for its turn, a few milliseconds.

Each saves about a tenth of a step's processor time.

Only who starts all tasks knows that they are free to use the same cores: it
says so in the environment, and each task takes its share. Pure, but for
`share_machine`.
"""

import contextlib
import os
from collections.abc import Mapping
from collections.abc import Sequence

from tfps_plugin.cluster import spec
from tfps_plugin.cluster.machine import server_threads

# The cores that tasks share, "0,1"; empty: every task uses all that it may.
_VARIABLE = "TFPS_SHARED_CORES"


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of tasks that share this process's cores.

    Args:
        environment: Of the tasks otherwise. What a user has set is kept.

    Returns:
        Those to add; none where tasks are to run anywhere: where Linux says
        how much they may compute, and not on which cores, others may well be
        on the very same ones.
    """
    if _VARIABLE in environment or not hasattr(os, "sched_getaffinity"):
        return {}
    cores = sorted(os.sched_getaffinity(0))
    if server_threads.usable_cores() < len(cores):
        return {}
    return {_VARIABLE: ",".join(map(str, cores))}


def share(config: spec.TaskConfig, cores: Sequence[int]) -> frozenset[int]:
    """The cores of one task.

    Workers of one host share its cores, and so do parameter servers. The two
    jobs do not share with each other, as they mostly wait for each other.

    Args:
        config: Which task of which cluster. Tasks are on one machine if their
            addresses name the same host.
        cores: Those to share, at least one.

    Returns:
        Cores that no other task of the job has; or one that as few as
        possible have, where there are more tasks than cores.
    """
    neighbours = [
        task.index
        for task in config.cluster.tasks
        if task.job == config.job and task.host == config.task.host
    ]
    number, count = neighbours.index(config.index), len(neighbours)
    if count > len(cores):
        return frozenset([cores[number % len(cores)]])
    # Neighbours in number are so on the machine: they share caches.
    first, end = (len(cores) * n // count for n in (number, number + 1))
    return frozenset(cores[first:end])


def share_machine(
    config: spec.TaskConfig, environment: Mapping[str, str]
) -> None:
    """Has this process share its machine with other tasks, if it is to.

    It runs on its share of the cores, and interrupts nobody there. Where a
    user has given it cores or a scheduling policy, it keeps these.

    Args:
        config: Which task it is.
        environment: Its environment.

    Threading: for the calling thread and those that it starts from then on.
    """
    try:
        cores = [int(core) for core in environment[_VARIABLE].split(",")]
        allowed = os.sched_getaffinity(0)
    except (KeyError, ValueError, AttributeError):
        # Nobody has said so, or not on Linux.
        return
    # Otherwise somebody has given this task cores of its own already.
    if allowed == set(cores):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, share(config, cores))
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

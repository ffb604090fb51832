"""Number of cores that this process may use, by affinity and by CPU quota."""

import math
import os
import pathlib
from collections.abc import Iterator

_ROOT = pathlib.Path("/")
# The mount point of control groups, version 1 (below it: a folder for each
# controller) and version 2.
_MOUNT = "sys/fs/cgroup"
_MICROSECONDS_NO_QUOTA = -1


def allowed_cores() -> frozenset[int]:
    """Returns the cores that the calling thread may run on."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        # Not Linux, or a sandbox refuses the call.
        return frozenset(range(os.cpu_count() or 1))


def cpu_quota(root: pathlib.Path = _ROOT) -> float | None:
    """Returns how many cores' time the control groups of this process allow.

    Args:
        root: The root of the file system.

    Returns:
        The smallest quota of the process's group and the groups around it, in
        cores; None if there is no quota.
    """
    quotas = [
        quota
        for folder in _group_folders(root)
        if (quota := _quota_of(folder)) is not None
    ]
    return min(quotas, default=None)


def usable_cores(root: pathlib.Path = _ROOT) -> int:
    """Returns how many cores this process may use.

    Args:
        root: The root of the file system.

    Returns:
        The number of cores that it may run on, or the CPU quota, rounded up,
        if that is less; at least one.
    """
    cores = len(allowed_cores())
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _group_folders(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields the folder of each CPU control group around this process.

    A container may see the path that its group has on the host, where there is
    no such folder. It then finds its own group at the mount point, which comes
    last.
    """
    mount = root / _MOUNT
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []  # not Linux, or one without control groups
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        hierarchy = mount / controllers
        group = pathlib.PurePosixPath(path.lstrip("/"))
        if ".." in group.parts:  # outside of this process's namespace
            group = pathlib.PurePosixPath()
        for each in (group, *group.parents):
            yield hierarchy / each


def _quota_of(folder: pathlib.Path) -> float | None:
    """Returns the quota of one control group, in cores, if it has any."""
    version_1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / name).read_text() for name in version_1)
        # Version 2 says "max" where there is no quota, version 1 says -1.
        if int(quota) == _MICROSECONDS_NO_QUOTA:
            return None
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None

"""Division of a machine's cores among the tasks of a job."""

import pathlib
from collections.abc import Collection
from collections.abc import Sequence

_CORES = pathlib.Path("/sys/devices/system/cpu")


def physical_cores(
    cores: Collection[int], folder: pathlib.Path = _CORES
) -> list[frozenset[int]]:
    """Groups cores that are hyper-threads of one physical core.

    Args:
        cores: Numbers of cores as Linux counts them: each is one hyper-thread.
        folder: The folder in which Linux describes them.

    Returns:
        The groups. Those of one processor (socket) are next to each other.
    """
    groups: dict[tuple[int, int], set[int]] = {}
    for core in cores:
        groups.setdefault(_position(core, folder), set()).add(core)
    return [frozenset(groups[position]) for position in sorted(groups)]


def share(
    number: int, count: int, groups: Sequence[frozenset[int]]
) -> frozenset[int]:
    """Returns the cores of one task of a job.

    Args:
        number: Number of the task in its job.
        count: Number of tasks of the job.
        groups: The machine's cores, from `physical_cores`; at least one group.

    Returns:
        Whole groups that no other task of the job has; or, if there are more
        tasks than groups, a group that as few tasks as possible share.
    """
    if count > len(groups):
        return groups[number % len(groups)]
    # Adjacent groups share caches.
    first, end = (len(groups) * n // count for n in (number, number + 1))
    return frozenset().union(*groups[first:end])


def _position(core: int, folder: pathlib.Path) -> tuple[int, int]:
    """Returns the number of a core's processor and of its first sibling."""
    topology = folder / f"cpu{core}/topology"
    try:
        package = int((topology / "physical_package_id").read_text())
        # Such as "0,64" or "0-1".
        siblings = (topology / "thread_siblings_list").read_text()
        first = siblings.split(",")[0].split("-")[0]
        return package, int(first)
    except (OSError, ValueError):
        return 0, core

"""The changes by which a cluster becomes the one that is described. Pure."""

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Changes:
    """Tasks of a job to add and to remove.

    Attributes:
        added: Addresses of tasks to add, in the order of their indices.
        removed: Indices of tasks to remove, the last one first.
        problem: Why nothing is removed, though fewer tasks are described;
            empty if there is no such problem.
    """

    added: tuple[str, ...] = ()
    removed: tuple[int, ...] = ()
    problem: str = ""

    def __bool__(self) -> bool:
        """Returns whether there is anything to change."""
        return bool(self.added or self.removed)


def find(
    described: Sequence[str],
    known: Sequence[str],
    now: Sequence[str],
    indices: Collection[int],
    name: str = "workers",
) -> Changes:
    """Returns the changes to make.

    A task is its place in the list: there it may have another address, where it
    was started again. So tasks come and go at the end of the list.

    Args:
        described: Addresses of the tasks, as the cluster resolver has them.
        known: First addresses of all tasks that there have ever been.
        now: Their present addresses.
        indices: Indices of those that belong to the cluster.
        name: Name of such tasks, for messages.
    """
    added = [
        known[index] if index < len(known) else address
        for index, address in enumerate(described)
        if index not in indices
    ]
    removed = [index for index in indices if index >= len(described)]
    if removed and list(described) != list(now[: len(described)]):
        return Changes(
            tuple(added),
            (),
            f"the {len(described)} {name} {list(described)} are not the first "
            f"of {list(now)}",
        )
    return Changes(tuple(added), tuple(sorted(removed, reverse=True)))

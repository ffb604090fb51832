"""The changes by which a cluster becomes the one that is described. Pure."""

import dataclasses
from collections.abc import Collection
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Changes:
    """Workers to add and to remove.

    Attributes:
        added: Addresses of workers to add, in the order of their indices.
        removed: Indices of workers to remove, the last one first.
        problem: Why nothing is removed, though fewer workers are described;
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
) -> Changes:
    """Returns the changes to make.

    A worker is its place in the list: there it may have another address, where
    it was started again. So workers come and go at the end of the list.

    Args:
        described: Addresses of the workers, as the cluster resolver has them.
        known: First addresses of all workers that there have ever been.
        now: Their present addresses.
        indices: Indices of those that belong to the cluster.
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
            f"the {len(described)} workers {list(described)} are not the first "
            f"of {list(now)}",
        )
    return Changes(tuple(added), tuple(sorted(removed, reverse=True)))

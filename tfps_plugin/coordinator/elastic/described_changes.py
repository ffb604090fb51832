"""The changes by which a cluster becomes the one that is described. Pure."""

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from tfps_plugin.cluster.chief import address_book


@dataclasses.dataclass(frozen=True)
class Changes:
    """Tasks of a job to add and to remove.

    Attributes:
        added: Addresses of tasks to add, in the order of their indices.
        removed: Indices of tasks to remove, the last one first.
        unknown: Addresses whose tasks the list does not tell: only their
            processes know.
        problem: Why the description is not followed as a whole; empty if there
            is no such problem.
    """

    added: tuple[str, ...] = ()
    removed: tuple[int, ...] = ()
    unknown: tuple[str, ...] = ()
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
    told: Mapping[str, int] | None = None,
) -> Changes:
    """Returns the changes to make.

    In a list in the order of indices, a task is its place: there it may have
    another address, where it was started again, and tasks come and go at the
    end. In any other list, a task is its address.

    Args:
        described: Addresses of the tasks, as the cluster resolver has them.
        known: First addresses of all tasks that there have ever been.
        now: Their present addresses.
        indices: Indices of those that belong to the cluster.
        name: Name of such tasks, for messages.
        told: Indices by address, as processes tell them that were asked.
    """
    places = {now[index]: index for index in indices}
    is_shorter = any(index >= len(described) for index in indices)
    if address_book.are_in_place(described, places) and (
        not is_shorter or list(described) == list(now[: len(described)])
    ):
        return _by_place(described, known, indices)
    return _by_address(described, known, now, indices, name, told or {})


def _by_place(
    described: Sequence[str], known: Sequence[str], indices: Collection[int]
) -> Changes:
    added = [
        known[index] if index < len(known) else address
        for index, address in enumerate(described)
        if index not in indices
    ]
    removed = [index for index in indices if index >= len(described)]
    return Changes(tuple(added), tuple(sorted(removed, reverse=True)))


def _by_address(
    described: Sequence[str],
    known: Sequence[str],
    now: Sequence[str],
    indices: Collection[int],
    name: str,
    told: Mapping[str, int],
) -> Changes:
    gone = [index for index in range(len(known)) if index not in indices]
    missing = [index for index in indices if now[index] not in described]
    present = {now[index] for index in indices}
    free = [address for address in described if address not in present]
    # Tasks that were removed have their indices again.
    found = {
        address: index
        for index in gone
        for address in {now[index], known[index]}.intersection(free)
    }
    others = [address for address in free if address not in found]
    if len(others) == 1 and not missing and len(found) == len(gone):
        # All tasks that there have ever been are in the list.
        found[others[0]] = len(known)
    found |= {address: told[address] for address in others if address in told}
    unknown = tuple(address for address in free if address not in found)
    taken = [index for index in indices if index not in missing]
    if len({*found.values(), *taken}) < len(found) + len(taken):
        return Changes(
            problem=f"several of the {name} {list(described)} have one index, "
            f"as they tell: {found}, besides {taken} at known addresses"
        )
    added = [known[index] for index in gone if index in found.values()]
    following = sorted(
        (index, address)
        for address, index in found.items()
        if index >= len(known)
    )
    for number, (index, address) in enumerate(following, len(known)):
        if index == number:
            added.append(address)
    if unknown:
        return Changes(
            tuple(added),
            (),
            unknown,
            f"the {name} {list(described)} are not in the order of their "
            f"indices, and {list(unknown)} do not tell theirs, as those that "
            "serve do; until they do, none is removed",
        )
    problem = ""
    if following and following[-1][0] >= len(known) + len(following):
        problem = (
            f"the {name} that are new serve under the indices "
            f"{[index for index, _ in following]}, of which some are left out; "
            f"the next one is {len(known)}"
        )
    removed = set(missing) - set(found.values())
    return Changes(
        tuple(added), tuple(sorted(removed, reverse=True)), (), problem
    )

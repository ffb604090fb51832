"""Families of variables: those that have to stay on the same parameter servers.

A slot is on the parameter server of its variable, cut in the same way. Updates
read and change both there.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from tfps_plugin.recovery.resharding.layout_plan import Family
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.kinds.sharded_variable import whole_of
from tfps_plugin.variables.sharding.layout import RowLayout

# The layout of a variable that is not sharded.
_ONE_SHARD = RowLayout((0, 1))


class VariableFamily:
    """A variable and those that stay beside it.

    Attributes:
        members: The variables, sharded ones as a whole; first the one that the
            others are beside.
    """

    def __init__(self, first: Any) -> None:
        """Begins with the variable that others are beside."""
        self.members: list[Any] = [first]

    @property
    def first(self) -> Any:
        """The variable that the others are beside."""
        return self.members[0]

    def described(self, index_of: dict[str, int]) -> Family:
        """Returns its place, for the plan.

        Args:
            index_of: The index of each parameter server, by its device.
        """
        first = self.first
        is_sharded = isinstance(first, ShardedVariable)
        return Family(
            sum(num_bytes(each) for each in self.members),
            first.layout if is_sharded else _ONE_SHARD,
            tuple(index_of[shard.device] for shard in first.shards),
            is_sharded=is_sharded,
            is_fixed=first.is_placed_by_hand,
            rows_per_block=getattr(first, "rows_per_block", 1),
        )


def num_bytes(variable: Any) -> int:
    """Returns the size of a variable, sharded or not."""
    return initialization.num_bytes(variable.shape, variable.dtype)


def find(variables: Iterable[RemoteVariable]) -> list[VariableFamily]:
    """Returns the families of variables, oldest first.

    Args:
        variables: Variables and shards; all of a family.
    """
    found: dict[int, VariableFamily] = {}
    for variable in _whole(variables):
        first = variable
        while (before := first.beside()) is not None:
            first = before
        if id(first) not in found:
            found[id(first)] = VariableFamily(first)
        if variable is not first:
            found[id(first)].members.append(variable)
    return list(found.values())


def _whole(variables: Iterable[RemoteVariable]) -> Iterator[Any]:
    """Yields each variable once, a sharded one in place of its shards."""
    seen: set[int] = set()
    for variable in variables:
        whole = whole_of(variable)
        if id(whole) not in seen:
            seen.add(id(whole))
            yield whole

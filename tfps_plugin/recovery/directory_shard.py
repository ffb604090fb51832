"""Variables of one shard of a table without a vocabulary."""

import dataclasses
from collections.abc import Iterable

import tensorflow as tf

from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import whole_of


@dataclasses.dataclass(frozen=True, eq=False)
class DirectoryShard:
    """Variables of one shard whose rows belong to the same ids.

    Counts of ids without rows are not among them: they are no id's row.

    Attributes:
        members: The rows, slots, usage if there is one, and last the records.
        slots: Those that a row without an id has the values of a new row in.
        space: Rows of the table.
    """

    members: tuple[RemoteVariable, ...]
    slots: tuple[RemoteVariable, ...]
    space: RowSpace

    @property
    def rows(self) -> RemoteVariable:
        """The rows."""
        return self.members[0]

    @property
    def records(self) -> RemoteVariable:
        """The ids of the rows."""
        return self.members[-1]

    @property
    def device(self) -> str:
        """Device of the parameter server."""
        return self.rows.device


def find(variables: Iterable[RemoteVariable]) -> list[DirectoryShard]:
    """Returns the shards of tables without a vocabulary.

    Args:
        variables: Variables and shards.

    Raises:
        tf.errors.AbortedError: If a table is just being cut anew.
    """
    found = []
    for variable in variables:
        table = whole_of(variable).dynamic_table()
        if table is None:
            continue
        try:
            shards = table.shards()
        except IndexError:
            # The rows have more shards already than the records.
            raise _cut_anew(variable) from None
        for parts, _ in shards:
            if parts.rows is not variable:
                continue
            beside = () if parts.usage is None else (parts.usage,)
            members = (parts.rows, *parts.slots, *beside, parts.records)
            if len({(each.device, each.shape[0]) for each in members}) > 1:
                raise _cut_anew(variable)
            found.append(DirectoryShard(members, parts.slots, table.space))
    return found


def _cut_anew(variable: RemoteVariable) -> tf.errors.AbortedError:
    return tf.errors.AbortedError(
        None, None, f"The table of {variable.path} is being cut anew."
    )

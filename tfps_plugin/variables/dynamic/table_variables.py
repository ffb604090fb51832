"""Variables of a table, or of several that are stacked."""

import dataclasses
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts
from tfps_plugin.variables.kinds.sharded_variable import whole_of
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.lookup.table import table_behind


@dataclasses.dataclass(frozen=True)
class TableVariables:
    """The `keras.Variable`s of a stack, all cut in the same way.

    Attributes:
        rows: The rows.
        records: Their ids, see `ShardParts`.
        usage: When steps have looked them up; None: nobody needs it.
        counters: Counts of lookups of ids without rows; None: there are none.
    """

    rows: Any
    records: Any
    usage: Any = None
    counters: Any = None

    @property
    def beside_rows(self) -> list[Any]:
        """All but the rows, None where there is none."""
        return [self.records, self.usage, self.counters]

    def shards(self) -> list[tuple[ShardParts, range]]:
        """Returns the variables and the rows of each shard.

        Raises:
            VariableCreationError: If only a part of the variables is on
                parameter servers.
        """
        found = table_behind(self.rows)
        if found is None:
            return [(self.of_this_process(), range(self.rows.shape[0]))]
        table = found[0]
        beside = [
            None if variable is None else _table_of(variable)
            for variable in self.beside_rows
        ]
        return [
            (
                _parts(
                    shard,
                    *[
                        None if each is None else each.shards[index]
                        for each in beside
                    ],
                ),
                table.layout.rows(index),
            )
            for index, shard in enumerate(table.shards)
        ]

    def of_this_process(self) -> ShardParts:
        """Returns the variables of a program of one process."""
        rows, records, usage, counters = (
            # Mixed precision would cast all rows.
            None if variable is None else keras_compat.value_of(variable)
            for variable in (self.rows, *self.beside_rows)
        )
        return ShardParts(rows, records, usage, counters)


def _parts(shard: Any, records: Any, usage: Any, counters: Any) -> ShardParts:
    ours = {id(each) for each in (records, usage, counters)}
    slots = tuple(each for each in shard.family if id(each) not in ours)
    followers = tuple(
        slot for slot in slots if whole_of(slot).begins_as_its_variable
    )
    return ShardParts(shard, records, usage, counters, slots, followers)


def _table_of(variable: Any) -> Table:
    found = table_behind(variable)
    if found is None:
        raise errors.VariableCreationError(
            "The rows of a table by id are on parameter servers, but what is "
            "known of them is not. Make the whole layer under "
            f"strategy.scope(). Received: variable={variable.path!r}"
        )
    return found[0]

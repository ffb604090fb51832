"""Variables that each parameter server holds, and rows that are looked up."""

from collections.abc import Callable
from typing import Any

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.monitoring.state.cluster_state import TableState
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.kinds import sharded_variable
from tfps_plugin.variables.lookup import row_counts as row_counts_module
from tfps_plugin.variables.sharding.inventory import Inventory

# Tables of a parameter server that the state names.
_MOST_TABLES = 10


class Held:
    """Variables that one parameter server holds.

    Attributes:
        num_bytes: Bytes of all variables and shards.
        num_rows: Number of rows of tables, without slots.
        num_variables: Number of variables and shards.
        has_updates: Whether an optimizer updates any of them.
        tables: The first of its tables, as in `ParameterServerState`.
    """

    def __init__(
        self,
        inventory: Inventory,
        device: str,
        rate_of: Callable[[Any, int], float | None],
    ) -> None:
        """Looks at the inventory.

        Args:
            inventory: The variables of all parameter servers.
            device: Full name of the device of this one.
            rate_of: Returns the rows of a shard that are looked up in a second,
                by the table and the shard's number; None: unknown.
        """
        self.num_bytes = self.num_rows = self.num_variables = 0
        self.has_updates = False
        by_table: dict[int, tuple[Any, list[Any]]] = {}
        for variable in inventory.on([device]):
            self.num_variables += 1
            self.num_bytes += _num_bytes(variable)
            whole = sharded_variable.whole_of(variable)
            if whole.beside() is not None:
                # A slot.
                self.has_updates = True
            elif whole.was_looked_up:
                by_table.setdefault(id(whole), (whole, []))[1].append(variable)
        tables = [
            _table(whole, parts, rate_of) for whole, parts in by_table.values()
        ]
        self.num_rows = sum(table.num_rows for table in tables)
        tables.sort(
            key=lambda table: (-(table.rows_per_second or 0), -table.num_bytes)
        )
        self.tables = tuple(tables[:_MOST_TABLES])


def _table(
    whole: Any,
    parts: list[Any],
    rate_of: Callable[[Any, int], float | None],
) -> TableState:
    shards = {id(shard): number for number, shard in enumerate(whole.shards)}
    rates = [
        rate
        for part in parts
        if id(part) in shards
        and (rate := rate_of(whole, shards[id(part)])) is not None
    ]
    return TableState(
        name=whole.path,
        num_rows=sum(
            int(part.shape[0]) if part.shape.rank else 1 for part in parts
        ),
        num_bytes=sum(map(_num_bytes, parts)),
        rows_per_second=sum(rates) if rates else None,
    )


def _num_bytes(variable: Any) -> int:
    return initialization.num_bytes(variable.shape, variable.dtype)


def row_counts(
    inventory: Inventory, devices: list[str]
) -> dict[int, list[int]]:
    """Returns how many rows lookups have asked for, of each shard.

    Args:
        inventory: The variables of all parameter servers.
        devices: Full names of their devices.

    Returns:
        The counts of the shards of each table that is counted, by the table's
        `id`.

    Raises:
        tf.errors.OpError: If a worker is lost meanwhile; the next look finds
            the others.
    """
    tables = {
        id(whole): whole
        for variable in inventory.on(devices)
        if (whole := sharded_variable.whole_of(variable)).row_counts is not None
    }
    with tensorflow_execution.own_executor():
        counts = row_counts_module.totals(
            [table.row_counts for table in tables.values()]
        )
    return dict(zip(tables, counts, strict=True))

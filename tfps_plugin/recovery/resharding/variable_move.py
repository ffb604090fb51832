"""One variable on its way to other parameter servers."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from tfps_plugin.recovery.resharding.moved_rows import MovedRows
from tfps_plugin.recovery.resharding.moved_rows import Piece
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup.row_counts import RowCounts
from tfps_plugin.variables.sharding.layout import RowLayout

# Makes a variable without a value: like another one, but of a number of rows
# (None: of the same shape), on a device, with a name.
NewVariable = Callable[[RemoteVariable, int | None, str, str], RemoteVariable]


class VariableMove:
    """A variable, sharded or not, with the copies that take its place.

    Attributes:
        variable: The variable.
        rows: The rows that have to be copied.
    """

    def __init__(
        self,
        variable: Any,
        layout: RowLayout,
        devices: Sequence[str],
        new_variable: NewVariable,
        *,
        is_looked_up: bool,
    ) -> None:
        """Makes the copies, without values.

        Args:
            variable: The variable.
            layout: Rows of each new shard, if it is sharded.
            devices: The device of each new shard. A variable that is not
                sharded goes to the first.
            new_variable: Makes a copy.
            is_looked_up: See `MovedRows`.
        """
        self.variable = variable
        self.rows: list[MovedRows] = []
        # The new shards, those that stay included.
        self._targets: list[RemoteVariable] = []
        self._layout = layout
        if isinstance(variable, ShardedVariable):
            self._cut(devices, new_variable, is_looked_up=is_looked_up)
        elif variable.device != devices[0]:
            copy = new_variable(variable, None, devices[0], variable.path)
            self._targets = [copy]
            rows = variable.shape[0] if variable.shape.rank else 1
            self.rows = [
                MovedRows(
                    variable,
                    [Piece(range(rows), copy, 0)],
                    is_looked_up=is_looked_up,
                )
            ]

    def _cut(
        self,
        devices: Sequence[str],
        new_variable: NewVariable,
        *,
        is_looked_up: bool,
    ) -> None:
        table = self.variable
        shards = table.shards
        pieces: dict[int, list[Piece]] = {}
        for number, device in enumerate(devices):
            rows = self._layout.rows(number)
            overlaps = list(table.layout.overlaps(rows.start, rows.stop))
            old, local = overlaps[0]
            if (
                local == range(len(table.layout.rows(old)))
                and len(local) == len(rows)
                and shards[old].device == device
            ):
                self._targets.append(shards[old])
                continue
            target = new_variable(
                shards[old], len(rows), device, f"{table.name}/part_{number}"
            )
            self._targets.append(target)
            first_row = 0
            for old, local in overlaps:
                piece = Piece(local, target, first_row)
                pieces.setdefault(old, []).append(piece)
                first_row += len(local)
        self.rows = [
            MovedRows(shards[old], each, is_looked_up=is_looked_up)
            for old, each in pieces.items()
        ]

    @property
    def changes_anything(self) -> bool:
        """True if the variable, or a part of it, has another place."""
        return bool(self.rows)

    def adopt(self) -> tuple[list[RemoteVariable], list[RemoteVariable]]:
        """Lets the variable go on with the copies.

        Returns:
            The shards that are gone and those in their place; for a variable
            that is not sharded, none and the variable itself.
        """
        if not isinstance(self.variable, ShardedVariable):
            (copy,) = self._targets
            self.variable.adopt(copy)
            return [], [self.variable]
        before = list(self.variable.shards)
        self.variable.recut(self._targets, self._layout)
        if self.variable.row_counts is not None:
            self.variable.row_counts = RowCounts(len(self._targets))
        return _without(before, self._targets), _without(self._targets, before)


def _without(
    variables: Sequence[RemoteVariable], others: Sequence[RemoteVariable]
) -> list[RemoteVariable]:
    """Returns variables that are not among others, by identity."""
    known = {id(each) for each in others}
    return [each for each in variables if id(each) not in known]

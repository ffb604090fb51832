"""Rules that all shards of a table without a vocabulary have in common."""

import dataclasses

from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.initial_rows import StackedInitialRows
from tfps_plugin.variables.dynamic.policies import Admission
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.dynamic.row_space import RowSpace


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules that all shards of a table, or of a stack of them, have in common.

    Attributes:
        tables: Names of the tables, for messages.
        space: Rows of all buckets.
        initial: First rows of ids.
        admission: Which ids get rows; None: all.
        eviction: Which lose them; None: none.
        steps_per_update: Number of steps whose gradients are held back to be
            applied together.
    """

    tables: tuple[str, ...]
    space: RowSpace
    initial: InitialRows | StackedInitialRows
    admission: Admission | None = None
    eviction: Eviction | None = None
    steps_per_update: int = 1

    @property
    def leaves_ids_out(self) -> bool:
        """True if an id of a step that trains may have no row."""
        return self.admission is not None or self.may_lack_room

    @property
    def may_lack_room(self) -> bool:
        """True if an id without room is no error."""
        return (
            self.eviction is not None
            and self.eviction.beyond_capacity is not None
        )

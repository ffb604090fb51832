"""Variables on their way to the parameter servers that there will be."""

import logging
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeVar

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_placed_traces
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.resharding import families
from tfps_plugin.recovery.resharding import layout_plan
from tfps_plugin.recovery.resharding.families import VariableFamily
from tfps_plugin.recovery.resharding.layout_plan import Family
from tfps_plugin.recovery.resharding.moved_rows import MovedRows
from tfps_plugin.recovery.resharding.variable_move import VariableMove
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.step_trace import StepTrace

_logger = logging.getLogger("tfps_plugin.recovery")

T = TypeVar("T")

# Returns the place of each of some families, as they will be.
Planner = Callable[
    [Sequence[VariableFamily], Sequence[Family]], Sequence[Family]
]

# What changes while rows are copied is copied again, until there is so little
# of it, or hardly less than before; but not more often than this.
_MOST_ROUNDS = 5
_LITTLE_BYTES = 8 << 20


class Moves:
    """All variables of a strategy on their way to other parameter servers.

    Threading: one thread at a time. `complete` and `go_on` need that nothing of
    the program runs on the cluster.
    """

    def __init__(
        self,
        strategy: Any,
        ps_devices: dict[int, str],
        planner: Planner | None = None,
    ) -> None:
        """Plans, and makes copies without values.

        Args:
            strategy: A `tfps.ParameterServerStrategy`.
            ps_devices: The device of each parameter server that there will be,
                by its index.
            planner: Plans the places of families by what was counted; None:
                `layout_plan`. It does not plan those that are made later.
        """
        self._strategy = strategy
        self._planner = planner
        self._version: int = strategy.layout_version
        self._before: dict[int, str] = strategy.ps_by_index
        self._after = ps_devices
        # Families when everything was copied.
        self._found: list[VariableFamily] = []
        # By the `id` of the first of each family, and of each variable. The
        # moves keep the variables, so that nothing else gets these ids.
        self._planned: dict[int, Family] = {}
        self._moves: dict[int, VariableMove] = {}
        self._plan(balances=True)

    @property
    def changes_anything(self) -> bool:
        """True if a variable has another place according to the plan."""
        return any(move.changes_anything for move in self._moves.values())

    def copy(self) -> None:
        """Copies tables row by row, while others change them.

        Raises:
            tf.errors.OpError: If a parameter server is lost.
        """
        self._on_every_server(MovedRows.copy)
        before = None
        for _ in range(_MOST_ROUNDS):
            changed = sum(self._on_every_server(MovedRows.copy_changed))
            _logger.debug("%d bytes have changed while copied.", changed)
            if changed <= _LITTLE_BYTES or (
                before is not None and changed > before / 2
            ):
                return
            before = changed

    def require_idle(self) -> None:
        """Refuses to move variables while functions use them.

        Raises:
            UnsupportedError: If functions of the strategy wait or run.
        """
        if self._strategy.has_work:
            raise errors.UnsupportedError(
                "The parameter server cannot be removed: functions of another "
                "strategy of this program run. Expected none. Received: "
                f"functions of {self._strategy!r}. Call join() of its "
                "coordinator first."
            )

    def complete(self) -> None:
        """Copies what has changed since, and what was made since.

        Raises:
            InternalError: If variables have moved since they were planned.
            tf.errors.OpError: If a parameter server is lost. Nothing is changed
                then.
        """
        if self._strategy.layout_version != self._version:
            raise errors.InternalError(
                "Variables have moved since their moves were planned. Expected "
                f"layout {self._version}. Received: layout="
                f"{self._strategy.layout_version}. Please report this."
            )
        self._found = self._plan(balances=False)
        self._on_every_server(MovedRows.complete)

    def go_on(self) -> int:
        """Goes on with the copies, which are complete. Nothing can fail.

        Returns:
            Number of bytes of the variables and shards that have moved.
        """
        found = self._found
        on_ps = self._strategy.on_ps
        gone: list[RemoteVariable] = []
        moved: list[RemoteVariable] = []
        has_moved: set[int] = set()
        for family in found:
            changed = [
                move
                for each in family.members
                if (move := self._moves[id(each)]).changes_anything
            ]
            for move in changed:
                old, new = move.adopt()
                gone += old
                moved += new
                has_moved |= set(map(id, new))
            if changed:
                _renew_locks(family, on_ps.new_lock, has_moved)
        on_ps.inventory.replace(gone, moved)
        for family in found:
            for each in family.members:
                if isinstance(each, ShardedVariable) and (
                    self._moves[id(each)].changes_anything
                ):
                    each.recut_is_complete()
        counts = [] if self._planner is None else _stop_counting(found)
        self._strategy.go_on_with(self._after)
        self._free_past_directories(found)
        self._moves.clear()
        tensorflow_placed_traces.forget(
            [*gone, *moved, *counts], or_if=_is_of_all_ps
        )
        return sum(map(families.num_bytes, moved))

    def _free_past_directories(self, found: Sequence[VariableFamily]) -> None:
        for family in found:
            for each in family.members:
                if each.directory_places is not None:
                    each.directory_places.free(
                        [
                            (shard.device, each.layout.rows(index))
                            for index, shard in enumerate(each.shards)
                        ],
                        self._after.values(),
                    )

    def _plan(self, *, balances: bool) -> list[VariableFamily]:
        """Plans what has no plan yet.

        Args:
            balances: Whether variables may move for balance.

        Returns:
            All families.
        """
        found = families.find(self._variables())
        new = [each for each in found if id(each.first) not in self._planned]
        index_of = {device: index for index, device in self._before.items()}
        described = [each.described(index_of) for each in new]
        planned: Sequence[Family]
        if self._planner is not None and balances:
            planned = self._planner(new, described)
        else:
            planned = layout_plan.plan(described, self._before, self._after)
        for family, as_it_is, as_planned in zip(
            new, described, planned, strict=True
        ):
            stays = not balances and set(as_it_is.servers) <= set(self._after)
            self._planned[id(family.first)] = as_it_is if stays else as_planned
        for family in found:
            self._add_moves(family, self._planned[id(family.first)])
        return found

    def _variables(self) -> list[RemoteVariable]:
        """Returns all variables, and numbers that have to move, too."""
        inventory = self._strategy.inventory
        leaving = [
            device
            for index, device in self._before.items()
            if index not in self._after
        ]
        return [
            *inventory.on(self._before.values()),
            *inventory.tallies_on(leaving),
        ]

    def _add_moves(self, family: VariableFamily, planned: Family) -> None:
        devices = [self._after[server] for server in planned.servers]
        for each in family.members:
            if id(each) not in self._moves:
                self._moves[id(each)] = VariableMove(
                    each,
                    planned.layout,
                    devices,
                    self._strategy.on_ps.without_value,
                    # Written as a whole, it would be in memory.
                    is_looked_up=family.first.was_looked_up or each.is_on_disk,
                )

    def _on_every_server(self, act: Callable[[MovedRows], T]) -> list[T]:
        """Calls a method of all rows, on all parameter servers at once."""
        rows = {
            id(each.part): each
            for move in self._moves.values()
            for each in move.rows
        }
        for each in rows.values():
            each.allocate()
        results = part_files.on_every_device(
            [each.part for each in rows.values()],
            lambda device, own: [act(rows[id(part)]) for part in own],
        )
        return [each for own in results.values() for each in own]


def _stop_counting(found: Sequence[VariableFamily]) -> list[Any]:
    """Lets lookups be counted no more; returns what has counted them."""
    tables = [f.first for f in found if f.first.row_counts is not None]
    counts = [table.row_counts for table in tables]
    for table in tables:
        table.row_counts = None
    return counts


def _is_of_all_ps(graph: tf.Graph) -> bool:
    """Returns whether a function has a step that needs every ps."""
    return StepTrace.of_graph(graph).global_step is not None


def _renew_locks(
    family: VariableFamily,
    new_lock: Callable[[RemoteVariable], None],
    moved: set[int],
) -> None:
    """Gives the moved variables of a family locks of their new place.

    Args:
        family: The family, which has moved.
        new_lock: Gives a variable a lock of its parameter server.
        moved: The `id` of each variable and shard that has moved.
    """
    first = list(family.first.shards)
    for shard in first:
        if id(shard) in moved:
            new_lock(shard)
    for each in family.members[1:]:
        own = list(each.shards)
        is_alike = len(own) == len(first) and (
            isinstance(each, ShardedVariable)
            == isinstance(family.first, ShardedVariable)
        )
        for number, shard in enumerate(own):
            if id(shard) not in moved:
                continue
            if is_alike:
                # An update changes both, under one lock.
                shard.update_lock = first[number].update_lock
            else:
                new_lock(shard)

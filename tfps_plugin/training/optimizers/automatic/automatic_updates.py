"""Tables of an optimizer whose rows are all updated in every step."""

import threading
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.training.optimizers import table_semantics
from tfps_plugin.training.optimizers.automatic import ps_speed
from tfps_plugin.training.optimizers.automatic import update_costs
from tfps_plugin.training.optimizers.automatic.update_costs import UpdateCost
from tfps_plugin.training.optimizers.catch_up import caught_up_tables
from tfps_plugin.training.patches import table_regularizers
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable

# Attribute of an optimizer that holds its `AutomaticUpdates`.
_ATTRIBUTE = "_tfps_automatic_updates"
# Used until steps are measured, and in custom loops, which are not measured.
_SECONDS_OF_A_STEP_AT_FIRST = 0.01
_CALLS_OF_A_WORKER_AT_FIRST = 2


class AutomaticUpdates:
    """Chooses updates for one optimizer's tables with `sparse_update="auto"`.

    A table is updated whole, as in a single process, if that costs little
    compared to a step, and otherwise by the rows of the batch. A table is
    judged when a step that updates it is first traced, assuming a typical step
    time, and again when the time of steps is known.

    Threading: safe from several threads. Guarded by `_lock`: everything that
    changes.
    """

    def __init__(self) -> None:
        """Starts without tables."""
        self._lock = threading.Lock()
        self._tables: dict[str, Any] = {}
        self._costs: dict[str, UpdateCost] = {}
        self._exact: set[str] = set()
        self._speeds: dict[str, float] = {}
        self._name = ""
        self._seconds: float | None = None
        self._version = 0

    def __reduce__(self) -> Any:
        """Gives a copy of an optimizer its own, empty object."""
        return AutomaticUpdates, ()

    @property
    def version(self) -> int:
        """Number that grows with each change to the choice for known tables."""
        return self._version

    def is_exact(self, variable: Any) -> bool:
        """Returns whether every step updates all rows of a variable."""
        return _id_of(variable) in self._exact

    def consider(self, optimizer: Any, variables: Iterable[Any]) -> None:
        """Judges tables that are not known yet.

        Args:
            optimizer: A built Keras optimizer of a strategy.
            variables: Variables with gradients of some rows, whose rows can be
                updated alone.
        """
        with self._lock:
            new = {
                _id_of(variable): variable
                for variable in variables
                if isinstance(
                    compat.value_of(variable), RemoteVariable | ShardedVariable
                )
                and _id_of(variable) not in self._costs
                and _differs(optimizer, variable)
            }
            if not new:
                return
            strategy = compat.strategy_of(optimizer)
            self._name = type(optimizer).__name__
            costs = {
                key: UpdateCost(key, self._seconds_of(variable))
                for key, variable in new.items()
            }
            seconds = self._seconds
            if seconds is None:
                calls = (
                    strategy.scheduling.closures_in_flight
                    or _CALLS_OF_A_WORKER_AT_FIRST
                )
                seconds = _SECONDS_OF_A_STEP_AT_FIRST / (
                    calls * max(1, len(strategy.worker_devices))
                )
            chosen = update_costs.affordable(
                self._of_memory(costs, new),
                seconds,
                [self._costs[key] for key in self._exact],
            )
            self._tables |= new
            self._costs |= costs
            self._exact |= {cost.table for cost in chosen}
            self._tell(new, seconds)

    def settle(self, seconds_between_updates: float) -> None:
        """Judges all tables by the time of steps.

        Args:
            seconds_between_updates: Seconds between two updates of a parameter
                server, with the updates of all workers.
        """
        with self._lock:
            self._seconds = seconds_between_updates
            # Shards may be on other parameter servers than before.
            self._costs = {
                key: UpdateCost(key, self._seconds_of(variable))
                for key, variable in self._tables.items()
            }
            chosen = update_costs.affordable(
                self._of_memory(self._costs, self._tables),
                seconds_between_updates,
            )
            exact = {cost.table for cost in chosen}
            changed = exact ^ self._exact
            if not changed:
                return
            self._exact = exact
            self._version += 1
            self._tell(changed, seconds_between_updates)

    def _of_memory(
        self, costs: Mapping[str, UpdateCost], tables: Mapping[str, Any]
    ) -> list[UpdateCost]:
        """Returns the costs of tables in memory: others are never whole."""
        return [
            cost
            for key, cost in costs.items()
            if not compat.value_of(tables[key]).is_on_disk
        ]

    def _seconds_of(self, variable: Any) -> dict[str, float]:
        """Returns the seconds of an update of all rows, by device of the ps."""
        found: dict[str, float] = {}
        for shard in compat.value_of(variable).shards:
            device = shard.device
            if device not in self._speeds:
                self._speeds[device] = ps_speed.seconds_per_element(device)
            elements = shard.shape.num_elements() * (1 + len(shard.family))
            found[device] = (
                found.get(device, 0.0) + elements * self._speeds[device]
            )
        return found

    def _tell(
        self, keys: Iterable[str], seconds_between_updates: float
    ) -> None:
        for is_exact in (True, False):
            told = [key for key in keys if (key in self._exact) is is_exact]
            if told:
                table_semantics.tell_choice(
                    self._name,
                    [self._tables[key] for key in told],
                    is_exact=is_exact,
                    seconds=sum(self._costs[key].most for key in told),
                    seconds_between_updates=seconds_between_updates,
                    is_measured=self._seconds is not None,
                )


def of(optimizer: Any) -> AutomaticUpdates:
    """Returns the `AutomaticUpdates` of an optimizer; creates it if needed."""
    if not hasattr(optimizer, _ATTRIBUTE):
        setattr(optimizer, _ATTRIBUTE, AutomaticUpdates())
    found: AutomaticUpdates = getattr(optimizer, _ATTRIBUTE)
    return found


def settle(optimizers: Iterable[Any], seconds_between_updates: float) -> None:
    """Lets optimizers, and those within them, judge tables by the step time."""
    for each in _known(optimizers):
        each.settle(seconds_between_updates)


def version(optimizers: Iterable[Any]) -> int:
    """Returns a number that grows with each change of a choice."""
    return sum(each.version for each in _known(optimizers))


def _known(optimizers: Iterable[Any]) -> Iterator[AutomaticUpdates]:
    for optimizer in optimizers:
        if hasattr(optimizer, _ATTRIBUTE):
            yield of(optimizer)
        yield from _known(getattr(optimizer, "optimizers", ()))
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None:
            yield from _known([inner])


def _id_of(variable: Any) -> str:
    key: str = compat.value_of(variable)._unique_id
    return key


def _differs(optimizer: Any, table: Any) -> bool:
    """Returns whether updating all rows and some rows gives other results."""
    regularizer = getattr(table, "regularizer", None)
    if regularizer is not None and table_regularizers.sums_over_rows(
        regularizer
    ):
        # The regularizer is applied to the rows that a batch looks up.
        return False
    return (
        optimizer.use_ema
        or getattr(table, "constraint", None) is not None
        or caught_up_tables.changes_without_gradient(optimizer, table)
    )

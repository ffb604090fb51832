"""Moves the variables of a strategy when its parameter servers change."""

import gc
import weakref
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.spec import Task
from tfps_plugin.recovery.resharding.moves import Moves
from tfps_plugin.variables.sharding.inventory import Inventories


class Resharder:
    """Plans the moves of a strategy; see `coordinator.elastic.elastic_ps`.

    Threading: any thread.
    """

    def __init__(self, strategy: Any) -> None:
        """Takes the strategy, which keeps this object."""
        self._strategy = weakref.ref(strategy)

    def require_number(self, number: int) -> None:
        """Refuses a number of parameter servers that options do not allow.

        Args:
            number: The number that there would be.

        Raises:
            ClusterConfigurationError: If they need more.
        """
        strategy: Any = self._strategy()
        if strategy.recovery.replicate is not None and number < 2:
            raise errors.ClusterConfigurationError(
                "The parameter server cannot be removed: each has a copy of "
                "what another one holds. Expected at least two to be left, "
                f"with replicate={strategy.recovery.replicate!r}. Received: "
                f"{number} would be left."
            )

    def begin(self, tasks: tuple[Task, ...]) -> Moves:
        """Plans the moves, and makes copies without values.

        Args:
            tasks: The parameter servers that there will be.

        Raises:
            UnsupportedError: If another strategy has variables on one that
                leaves.
        """
        strategy: Any = self._strategy()
        session = strategy.session
        leaving = [
            session.device(task)
            for task in session.parameter_servers
            if task not in tasks
        ]
        others = connection.present().part(Inventories)
        for inventory in others.others(strategy.inventory):
            found = inventory.on(leaving)
            if found:
                # They may only wait for Python's garbage collection.
                del found
                gc.collect()
                found = inventory.on(leaving)
            if found:
                raise errors.UnsupportedError(
                    "The parameter server cannot be removed: another strategy "
                    "of this program has variables there, which would be lost. "
                    f"Received: {leaving} with {found[0].path!r} and "
                    f"{len(found) - 1} more. Delete the models of the other "
                    "strategy first."
                )
        return Moves(strategy, tasks)


def install(strategy: Any) -> None:
    """Lets the parameter servers of a strategy change."""
    strategy.resharder = Resharder(strategy)

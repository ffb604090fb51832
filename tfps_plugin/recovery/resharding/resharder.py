"""Moves the variables of a strategy when its parameter servers change."""

import weakref
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.spec import Task
from tfps_plugin.recovery.resharding.moves import Moves


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
        """
        return Moves(self._strategy(), tasks)


def install(strategy: Any) -> None:
    """Lets the parameter servers of a strategy change."""
    strategy.resharder = Resharder(strategy)

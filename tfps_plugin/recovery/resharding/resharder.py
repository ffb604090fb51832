"""Moves the variables of a strategy when its parameter servers change."""

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.spec import Task
from tfps_plugin.recovery.resharding.moves import Moves


class _Strategies:
    """All strategies of one connection; one of its parts.

    Guarded by `_lock`: the set.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._strategies: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, strategy: Any) -> None:
        with self._lock:
            self._strategies.add(strategy)

    def others(self, strategy: Any) -> list[Any]:
        with self._lock:
            return [each for each in self._strategies if each is not strategy]


class JointMoves:
    """The variables of several strategies on their way together.

    Threading: as `Moves`.
    """

    def __init__(self, own: Moves, others: Sequence[Moves]) -> None:
        """Takes the moves.

        Args:
            own: Those of the strategy whose parameter servers are changed.
            others: Those of other strategies, on which nothing may run.
        """
        self._own = own
        self._others = others

    def copy(self) -> None:
        """Copies tables, while others change them; see `Moves.copy`."""
        self._own.copy()
        for each in self._others:
            each.copy()

    def complete(self) -> None:
        """Copies what has changed since; see `Moves.complete`.

        Raises:
            UnsupportedError: If something runs on another strategy.
        """
        for each in self._others:
            each.require_idle()
        for each in (self._own, *self._others):
            each.complete()

    def go_on(self) -> int:
        """Goes on with the copies; see `Moves.go_on`."""
        return sum(each.go_on() for each in (self._own, *self._others))


class Resharder:
    """Plans the moves of a strategy; see `coordinator.elastic.elastic_ps`.

    Threading: any thread.
    """

    def __init__(self, strategy: Any) -> None:
        """Takes the strategy, which keeps this object."""
        self._strategy = weakref.ref(strategy)
        self._strategies = connection.present().part(_Strategies)
        self._strategies.add(strategy)

    def require_number(self, number: int) -> None:
        """Refuses a number of parameter servers that options do not allow.

        Args:
            number: The number that there would be.

        Raises:
            ClusterConfigurationError: If they need more.
        """
        own = self._strategy()
        for strategy in (own, *self._strategies.others(own)):
            replicate = strategy.recovery.replicate
            if replicate is not None and number < 2:
                raise errors.ClusterConfigurationError(
                    "The parameter server cannot be removed: each has a copy "
                    "of what another one holds. Expected at least two to be "
                    f"left, with replicate={replicate!r}. Received: "
                    f"number left={number}. Add another parameter server "
                    "first, by coordinator.add_ps(), or train without "
                    "replicate."
                )

    def begin(self, tasks: tuple[Task, ...]) -> JointMoves:
        """Plans the moves, and makes copies without values.

        Other strategies of the program leave a parameter server together with
        this one. They do without one that is added.

        Args:
            tasks: The parameter servers that there will be.
        """
        strategy: Any = self._strategy()
        left = {task.index for task in tasks}
        others = []
        for other in self._strategies.others(strategy):
            stays = {i: d for i, d in other.ps_by_index.items() if i in left}
            if len(stays) < len(other.ps_by_index):
                # At least one has to stay: the last it has may be leaving.
                others.append(Moves(other, stays or _devices(strategy, tasks)))
        return JointMoves(Moves(strategy, _devices(strategy, tasks)), others)


def _devices(strategy: Any, tasks: Sequence[Task]) -> dict[int, str]:
    """Returns the device of each parameter server, by its index."""
    return {task.index: strategy.session.device(task) for task in tasks}


def install(strategy: Any) -> None:
    """Lets the parameter servers of a strategy change."""
    strategy.resharder = Resharder(strategy)

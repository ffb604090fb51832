"""Gives variables their values back after their parameter server was replaced.

It knows the checkpoints that the program writes (`CheckpointManager` registers
itself with its first), and what each parameter server held
(`variables.inventory`).
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from tfps_plugin import errors
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.standby import Standby
from tfps_plugin.recovery.standby_copies import StandbyCopies
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar

# So many names are listed where some are missing.
_MOST_NAMES = 10


class Source(Protocol):
    """Something that has values of variables, such as a checkpoint."""

    def parts(self) -> list[Part]:
        """What it has values for."""

    def restore_parts(self, parts: Sequence[Part]) -> str:
        """Gives parts their values; returns a name for where they are from.

        Raises CheckpointUnreadableError if it turns out to have none.
        """


class Failover:
    """Restores what lost parameter servers held.

    Threading: `add` from any thread; `restore` while no closure runs.
    Guarded by `_lock`: the sources.
    """

    def __init__(self, strategy: Any, *, consistent: bool) -> None:
        """Begins without anything to restore from.

        Args:
            strategy: A `tfps.ParameterServerStrategy`.
            consistent: Whether all variables are set back together with the
                lost ones.
        """
        self._strategy = weakref.ref(strategy)
        self._consistent = consistent
        self._lock = threading.Lock()
        self._sources: list[weakref.ref[Any]] = []
        self._standby: Source | None = None

    def add(self, source: Source) -> None:
        """Has `restore` use a source, before all that were added earlier."""
        with self._lock:
            others = [r for r in self._sources if r() not in (None, source)]
            self._sources = [weakref.ref(source), *others]

    def prefer(self, standby: Source) -> None:
        """Has `restore` use a source before all others, if it has values."""
        self._standby = standby

    def can_restore(self) -> bool:
        """Whether there is anything to restore from."""
        return bool(self._living_sources())

    def restore(self, tasks: Sequence[Any]) -> tuple[str, int]:
        """Makes and fills again what parameter servers held.

        Args:
            tasks: The parameter servers; they are part of the cluster again.

        Returns:
            Where the values came from, and how many variables and shards.

        Raises:
            ParameterServerLostError: If there is a variable that nothing has
                a value for.
            CheckpointUnreadableError: If no checkpoint can be read.
            tf.errors.OpError: If a ps does not answer.
        """
        strategy = self._strategy()
        if strategy is None:
            raise errors.InternalError(
                "Variables of a strategy that is gone cannot be restored."
            )
        devices = [strategy.session.device(task) for task in tasks]
        lost = strategy.inventory.on(devices)
        plan = self._plan(lost)
        newest = {id(v): v.newest_copy() for v in lost if _is_known(v)}
        strategy.inventory.remake(devices)
        names = []
        for source, parts in plan:
            if self._consistent:
                parts = source.parts()
            names.append(source.restore_parts(parts))
        if not self._consistent:
            for variable in lost:
                if _is_known(variable):
                    variable.catch_up(newest[id(variable)])
        return " and ".join(names) or "nothing, as it held none", len(lost)

    def _plan(self, lost: Sequence[Any]) -> list[tuple[Source, list[Part]]]:
        """What to restore from which source; each variable once."""
        missing = {id(variable): variable for variable in lost}
        plan = []
        for source in self._living_sources():
            parts = [p for p in source.parts() if id(p.variable) in missing]
            for part in parts:
                del missing[id(part.variable)]
            if parts:
                plan.append((source, parts))
        if missing:
            raise _uncovered([v.path for v in missing.values()])
        return plan

    def _living_sources(self) -> list[Source]:
        with self._lock:
            sources = [reference() for reference in self._sources]
        living = [source for source in sources if source is not None]
        if self._standby is not None and self._standby.parts():
            return [self._standby, *living]
        return living


def install(strategy: Any) -> None:
    """Has lost parameter servers of a strategy be restored, if it wants so."""
    options = strategy.recovery
    if not options.in_place:
        return
    failover = Failover(strategy, consistent=options.restore == "consistent")
    strategy.ps_restorer = failover
    if options.replicate is not None:
        copies = StandbyCopies(strategy)
        failover.prefer(copies)
        strategy.background_work.append(
            Standby(copies, options.replicate_every_steps)
        )


def of(strategy: Any) -> Failover | None:
    """The failover of a strategy; None if it is not to restore anything."""
    failover: Failover | None = getattr(strategy, "ps_restorer", None)
    return failover


def _is_known(variable: Any) -> bool:
    """Whether workers know more of it than a checkpoint does."""
    return isinstance(variable, MirroredScalar) and (
        variable.only_grows or variable.outlives_ps
    )


def _uncovered(names: list[str]) -> errors.ParameterServerLostError:
    listed = ", ".join(sorted(set(names))[:_MOST_NAMES])
    more = len(set(names)) - _MOST_NAMES
    return errors.ParameterServerLostError(
        "A parameter server came back, but no checkpoint has values for some "
        "variables that it held. Expected every variable to be part of a "
        f"tfps.Checkpoint. Received: {listed}"
        f"{f' and {more} more' if more > 0 else ''}. Add what they belong to, "
        "as in tfps.Checkpoint(model=model, other=other)."
    )

"""Restores variables after their parameter server was replaced.

A `CheckpointManager` registers its folder here with its first checkpoint. The
strategy's inventory lists what each parameter server held.
"""

import threading
import weakref
from collections.abc import Sequence
from typing import Any
from typing import Protocol

from tfps_plugin import errors
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.standby import Standby
from tfps_plugin.recovery.standby import StandbyCopies
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar

# Largest number of missing variables that an error lists.
_MAX_LISTED_NAMES = 10


class Source(Protocol):
    """Source of values for variables, such as a folder of checkpoints."""

    def parts(self) -> list[Part]:
        """Returns the parts that it has values for."""

    def restore_parts(self, parts: Sequence[Part]) -> str:
        """Assigns values to parts.

        Args:
            parts: Some of `parts()`.

        Returns:
            A description of where the values came from.

        Raises:
            CheckpointUnreadableError: If there are no readable values.
        """


class Failover:
    """Restores the variables of lost parameter servers.

    Threading: `add` and `num_restored` are safe from any thread; `restore`
    needs that no closure runs. Guarded by `_lock`: the sources, the restores.
    """

    def __init__(self, strategy: Any, *, consistent: bool) -> None:
        """Begins without sources.

        Args:
            strategy: A `tfps.ParameterServerStrategy`.
            consistent: Whether all variables go back to the checkpoint
                together with the lost ones.
        """
        self._strategy = weakref.ref(strategy)
        self._consistent = consistent
        self._lock = threading.Lock()
        self._sources: list[weakref.ref[Any]] = []
        self._standby: Source | None = None
        self._num_begun = 0
        self._is_whole = True

    @property
    def num_restored(self) -> int | None:
        """Number of restores so far; None if the last one is not complete.

        Values that are read while it stays the same are of one moment, as far
        as restores are concerned. One that fails may have changed some values:
        it is not complete before another one is.
        """
        with self._lock:
            return self._num_begun if self._is_whole else None

    def add(self, source: Source) -> None:
        """Adds a source, which is used before those added earlier."""
        with self._lock:
            others = [r for r in self._sources if r() not in (None, source)]
            self._sources = [weakref.ref(source), *others]

    def prefer(self, standby: Source) -> None:
        """Sets the source that is used before all others if it has values."""
        self._standby = standby

    def can_restore(self) -> bool:
        """Returns whether there is a source to restore from."""
        return bool(self._living_sources())

    def restore(self, tasks: Sequence[Any]) -> tuple[str, int]:
        """Creates and restores the variables that parameter servers held.

        Args:
            tasks: The parameter servers, which are in the cluster again.

        Returns:
            A description of where the values came from, and the number of
            variables and shards.

        Raises:
            ParameterServerLostError: If no source has a value for one of the
                variables.
            CheckpointUnreadableError: If no checkpoint can be read.
            tf.errors.OpError: If a ps does not answer.
        """
        strategy = self._strategy()
        if strategy is None:
            raise errors.InternalError(
                "A parameter server cannot be restored because its strategy "
                "no longer exists. Expected the program to keep the strategy "
                f"while it trains. Received: tasks={list(tasks)}. Please "
                "report this."
            )
        with strategy.values_lock:
            return self._restore(strategy, tasks)

    def _restore(self, strategy: Any, tasks: Sequence[Any]) -> tuple[str, int]:
        devices = [strategy.session.device(task) for task in tasks]
        lost = strategy.inventory.on(devices)
        plan = self._plan(lost)
        newest = {id(v): v.newest_copy() for v in lost if _is_known(v)}
        with self._lock:
            self._num_begun += 1
            self._is_whole = False
        strategy.inventory.remake(devices)
        names = []
        for source, parts in plan:
            if self._consistent:
                parts = source.parts()
            names.append(source.restore_parts(parts))
            for part in parts:
                # Also on parameter servers that were not lost.
                part.variable.begin_epoch()
        if not self._consistent:
            for variable in lost:
                if _is_known(variable):
                    variable.catch_up(newest[id(variable)])
        with self._lock:
            self._is_whole = True
        return " and ".join(names) or "nothing, as it held none", len(lost)

    def _plan(self, lost: Sequence[Any]) -> list[tuple[Source, list[Part]]]:
        """Assigns each lost variable to the first source that has it."""
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
    """Sets up the recovery that the options of a strategy ask for."""
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
    """Returns the failover of a strategy; None if recovery is off."""
    failover: Failover | None = getattr(strategy, "ps_restorer", None)
    return failover


def _is_known(variable: Any) -> bool:
    """Returns whether workers hold a newer value of it than any checkpoint."""
    return isinstance(variable, MirroredScalar) and (
        variable.only_grows or variable.outlives_ps
    )


def _uncovered(names: list[str]) -> errors.ParameterServerLostError:
    listed = ", ".join(sorted(set(names))[:_MAX_LISTED_NAMES])
    more = len(set(names)) - _MAX_LISTED_NAMES
    return errors.ParameterServerLostError(
        "A parameter server came back, but no checkpoint has values for some "
        "of the variables that it held. Expected every variable to be part of "
        f"a tfps.Checkpoint. Received: variables={listed}"
        f"{f' and {more} more' if more > 0 else ''}. Add the objects that own "
        "them, as in tfps.Checkpoint(model=model, other=other)."
    )

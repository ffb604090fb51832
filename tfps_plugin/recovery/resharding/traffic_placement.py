"""Thread that places variables by the traffic of the first steps."""

import logging
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.monitoring import counters
from tfps_plugin.monitoring import events
from tfps_plugin.recovery.resharding import families as families_module
from tfps_plugin.recovery.resharding import traffic_plan
from tfps_plugin.recovery.resharding.families import VariableFamily
from tfps_plugin.recovery.resharding.layout_plan import Family
from tfps_plugin.recovery.resharding.moves import Moves
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.variables.chief import chief_reads

_logger = logging.getLogger("tfps_plugin.recovery")

# Steps that are counted: enough that rare rows matter little.
STEPS = 200
_LOOK_SECONDS = 0.2
_TIMEOUT_SECONDS = 600.0
# Variables move only if the busiest parameter server then has this much less of
# all traffic.
_LEAST_GAIN = 0.02


class TrafficPlacement:
    """Moves variables once, when the traffic of some steps is known.

    Threading: the coordinator calls `start` and `stop`, once each. It has no
    lock; everything else is used by the thread itself only.
    """

    def __init__(self) -> None:
        """Prepares; starts no thread yet."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        # Version of the layout that is counted, and the steps before.
        self._version = 0
        self._steps_before = 0

    def start(self, coordinator: Any) -> None:
        """Begins to watch the steps.

        Args:
            coordinator: A `ClusterCoordinator`; it is not kept alive.
        """
        self._thread = threading.Thread(
            target=self._run,
            args=(weakref.ref(coordinator),),
            name="tfps-placement",
            daemon=True,
        )
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Ends the thread.

        Args:
            timeout_seconds: How long to wait for its end.
        """
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def _run(self, reference: weakref.ref[Any]) -> None:
        while not self._stopped.wait(_LOOK_SECONDS):
            coordinator = reference()
            if coordinator is None or (
                coordinator.strategy.session.connection.is_over
            ):
                return
            num_steps = self._num_counted(coordinator)
            if num_steps >= STEPS and not coordinator.is_recovering:
                try:
                    self._place(coordinator, num_steps)
                except Exception as error:
                    if self._stopped.is_set():
                        return
                    if not chief_reads.is_about_the_cluster(error):
                        _logger.warning(
                            "Variables stay where they are: they could not be "
                            "placed by traffic. Received: %s: %s",
                            type(error).__name__,
                            error,
                        )
                        return
                else:
                    return
            del coordinator

    def _num_counted(self, coordinator: Any) -> int:
        """Returns the number of steps of which lookups were counted."""
        num_steps = counters.num_steps(coordinator.counters)
        version = coordinator.strategy.layout_version
        if version != self._version:
            # Another parameter server has come: counts begin anew.
            self._version, self._steps_before = version, num_steps
        return num_steps - self._steps_before

    def _place(self, coordinator: Any, num_steps: int) -> None:
        strategy = coordinator.strategy
        shares: list[float] = []

        def plan(
            found: Sequence[VariableFamily], described: Sequence[Family]
        ) -> list[Family]:
            readers = (
                coordinator.num_workers
                if isinstance(strategy.consistency, Sync)
                else 1
            )
            traffic = [
                _bytes_of_a_step(family, num_steps, readers) for family in found
            ]
            planned = traffic_plan.plan(
                described, traffic, strategy.ps_by_index
            )
            before = traffic_plan.hottest_share(described, traffic)
            after = traffic_plan.hottest_share(planned, traffic)
            shares.extend((before, after))
            if after > before - _LEAST_GAIN:
                return list(described)
            return planned

        def begin() -> Moves | None:
            moves = Moves(strategy, strategy.ps_by_index, plan)
            return moves if moves.changes_anything else None

        began_at = time.monotonic()
        moved = coordinator.move_variables(begin, _TIMEOUT_SECONDS)
        before, after = shares
        if moved is None:
            _logger.info(
                "Variables stay where they are: the busiest parameter server "
                "has %.0f%% of the traffic.",
                100 * before,
            )
            return
        num_bytes, paused_seconds = moved
        coordinator.events.publish(
            events.VariablesMoved(
                before,
                after,
                num_bytes,
                time.monotonic() - began_at,
                paused_seconds,
            )
        )


def _bytes_of_a_step(
    family: VariableFamily, num_steps: int, readers: int
) -> list[float]:
    """Returns the bytes that each shard of a family sends and gets in a step.

    Args:
        family: The family; its slots are neither sent nor received.
        num_steps: Number of steps that were counted.
        readers: Number of workers that read the whole variable in a step.
    """
    first = family.first
    sizes = [families_module.num_bytes(shard) for shard in first.shards]
    if first.row_counts is None or not first.was_looked_up:
        # All of it is read, and gets a gradient.
        return [2.0 * readers * size for size in sizes]
    # None, if no step has looked up any row.
    counts = first.row_counts.total() or [0] * len(sizes)
    return [
        2.0 * count / num_steps * size / max(1, _num_rows(shard))
        for count, size, shard in zip(counts, sizes, first.shards, strict=True)
    ]


def _num_rows(shard: Any) -> int:
    shape: tf.TensorShape = shard.shape
    return int(shape[0]) if shape.rank else 1


def install(strategy: Any) -> None:
    """Places the variables of a strategy by traffic, if it asks for that."""
    if strategy.placement == "traffic":
        strategy.background_work.append(TrafficPlacement())

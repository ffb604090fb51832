"""Updates of an optimizer, counted on the parameter servers that make them."""

import threading
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.monitoring import staleness
from tfps_plugin.monitoring.staleness import Staleness
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.updates.update_lock import UpdateLock

_ATTRIBUTE = "_tfps_update_counts"


class UpdateCounts:
    """Number of updates under each lock, and a histogram of their staleness.

    A parameter server counts by itself: a step reads the count together with
    its weights, its update reads it again under the lock, and neither leaves
    the parameter server. All are zero again after the loss of their parameter
    server, whose steps in flight fail.

    Guarantees: every trace of a step has the same count for a lock.
    Guarded by `_lock`: the variables. They are made while it is held.
    """

    def __init__(self) -> None:
        """Begins without a count."""
        self._lock = threading.Lock()
        self._counts: dict[Any, RemoteVariable] = {}
        self._histograms: dict[Any, RemoteVariable] = {}

    def __reduce__(self) -> Any:
        """Gives a copy of an optimizer counts of its own."""
        return UpdateCounts, ()

    @property
    def variables(self) -> list[RemoteVariable]:
        """All variables that it has made so far."""
        with self._lock:
            return [*self._counts.values(), *self._histograms.values()]

    def number(self, optimizer: Any, lock: UpdateLock) -> RemoteVariable:
        """Returns the number of updates under a lock, a scalar beside it.

        Args:
            optimizer: The optimizer that has these counts.
            lock: The lock of some of its variables.
        """
        return self._of(self._counts, optimizer, lock, [], "update_count")

    def histogram(self, optimizer: Any, lock: UpdateLock) -> RemoteVariable:
        """Returns a vector as `Staleness.of_vector` takes it, beside a lock.

        Args:
            optimizer: The optimizer that has these counts.
            lock: The lock of some of its variables, which guards the vector.
        """
        shape = [staleness.LENGTH]
        return self._of(
            self._histograms, optimizer, lock, shape, "update_staleness"
        )

    def _of(
        self,
        made: dict[Any, RemoteVariable],
        optimizer: Any,
        lock: UpdateLock,
        shape: list[int],
        name: str,
    ) -> RemoteVariable:
        key = (lock.device, lock.name)
        with self._lock:
            if key in made and made[key].device != lock.device:
                # Its parameter server was removed, and has come back.
                made[key, len(made)] = made.pop(key)
            if key not in made:
                made[key] = compat.strategy_of(optimizer).inventory.new_tally(
                    lock.device, tf.TensorShape(shape), name
                )
            return made[key]

    def take(self) -> Staleness:
        """Returns the histogram since the last time; no step may run.

        Raises:
            ParameterServerLostError: If a parameter server does not answer.
        """
        with self._lock:
            histograms = list(self._histograms.values())
        taken = Staleness()
        for histogram in histograms:
            vector = histogram.numpy()
            # A step that is presumed lost may still count: keep what it adds.
            histogram.assign_sub(vector, read_value=False)
            taken += Staleness.of_vector(vector)
        return taken


def of(optimizer: Any) -> UpdateCounts:
    """Returns the `UpdateCounts` of an optimizer; creates it if needed."""
    if not hasattr(optimizer, _ATTRIBUTE):
        setattr(optimizer, _ATTRIBUTE, UpdateCounts())
    found: UpdateCounts = getattr(optimizer, _ATTRIBUTE)
    return found


def known(optimizers: Iterable[Any]) -> Iterator[UpdateCounts]:
    """Yields the counts of optimizers, and of those within them.

    Args:
        optimizers: Optimizers; those without counts are passed over.
    """
    for optimizer in optimizers:
        if hasattr(optimizer, _ATTRIBUTE):
            yield of(optimizer)
        yield from known(getattr(optimizer, "optimizers", ()))
        inner = getattr(optimizer, "inner_optimizer", None)
        if inner is not None:
            yield from known([inner])

"""Part of an update of a variable: its share on one parameter server."""

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.step_trace import View
from tfps_plugin.variables.updates.update_lock import UpdateLock


@dataclasses.dataclass(frozen=True)
class UpdatePart:
    """Share of one variable, on one ps, in an update.

    Attributes:
        variable: The first argument of the update function.
        device: The device on which the function runs.
        args: Further arguments of the function, on that device.
        seen: The views that stand in for the variable and its slots, by their
            `_unique_id`; empty if the function sees them as they are.
        lock: The lock that is held while the function runs; None: none.
        is_rows: Whether the function sees some rows instead of all.
        owner: Any object by which the caller knows the part again.
        shard: The variable on the ps; None for a variable of another kind.
        ids_U: The numbers of the rows of the shard that the function sees,
            of shape [U]; None: all rows.
        finish: A function to call under the lock after the update; or None.
        needs: Further tensors that must have arrived before the lock is taken.
        renew: Returns the part as it is under the lock, given the part; None:
            it stays as it is.
    """

    variable: Any
    device: str
    args: tuple[Any, ...]
    seen: Mapping[str, View] = dataclasses.field(default_factory=dict)
    lock: UpdateLock | None = None
    is_rows: bool = False
    owner: Any = None
    shard: RemoteVariable | None = None
    ids_U: tf.Tensor | None = None
    finish: Callable[[], None] | None = None
    needs: tuple[tf.Tensor, ...] = ()
    renew: Callable[["UpdatePart"], "UpdatePart"] | None = None

    @property
    def arrivals(self) -> list[tf.Tensor]:
        """Tensors that may come from another task."""
        return [
            *self.needs,
            *(a for a in self.args if isinstance(a, tf.Tensor)),
        ]

    def renewed(self) -> "UpdatePart":
        """Returns the part as it is now, under the lock."""
        return self if self.renew is None else self.renew(self)

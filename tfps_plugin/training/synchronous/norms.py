"""Norms of gradients whose parts are on several parameter servers.

Parameter servers do not see each other. Each sends its part of a sum to the
chief, where a loop of TensorFlow adds them up, sends the total back, and hears
that it has arrived: three messages more for each ps and step, and only if an
optimizer clips by norm.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.training.synchronous.parcels import ParcelLayout
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.updates.remote_queues import RemoteQueues

# There is one queue of each kind on a ps.
_ONLY = 0


def are_shared(layouts: Sequence[ParcelLayout]) -> bool:
    """Returns whether any optimizer needs a norm of parts on several ps.

    Args:
        layouts: Layouts of the parcels of each ps.
    """
    return len(layouts) > 1 and any(
        optimizer.global_clipnorm
        or (optimizer.clipnorm and any(map(_is_spread, variables)))
        for layout in layouts
        for optimizer, variables in layout.updates
    )


def _is_spread(variable: Any) -> bool:
    value = compat.value_of(variable)
    return isinstance(value, ShardedVariable) and (
        len({shard.device for shard in value.variables}) > 1
    )


class SharedNorms:
    """Queues by which the chief adds up what each ps has computed.

    Threading: only the thread that traces uses `total_on`, `end_on` and
    `relay`.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        """Prepares the queues.

        Args:
            devices: Device of each ps.
        """
        # One message: 1 if the ps has made its last step, otherwise 0, and then
        # its part of the sum.
        self._parts = [
            RemoteQueues(device, "norm_parts", 1, [tf.float32])
            for device in devices
        ]
        self._totals = [
            RemoteQueues(device, "norm_totals", 1, [tf.float32])
            for device in devices
        ]

    def close(self, ps: int) -> None:
        """Ends calls that wait at the queues of a ps."""
        self._parts[ps].close()
        self._totals[ps].close()

    def renew(self, ps: int) -> None:
        """Replaces the queues of a ps by empty ones."""
        self._parts[ps].renew()
        self._totals[ps].renew()

    def total_on(self, ps: int, part: tf.Tensor) -> tf.Tensor:
        """Returns the sum over all ps; for use in an applier.

        Args:
            ps: Index of the ps that runs the function.
            part: Its part of the sum, a float32 vector.

        Returns:
            The sum, of the same shape.
        """
        put = self._parts[ps].put(_ONLY, [tf.concat([[0.0], part], 0)])
        with tf.control_dependencies([put]):
            (total,) = self._totals[ps].take(_ONLY)
        return tf.ensure_shape(total, part.shape)

    def end_on(self, ps: int) -> tf.Operation:
        """Tells the chief that a ps has made its last step."""
        return self._parts[ps].put(_ONLY, [tf.ones([1])])

    @functools.cached_property
    def relay(self) -> tf.types.experimental.ConcreteFunction:
        """The function by which the chief adds up sums.

        It takes nothing, and returns when every ps has made its last step.
        """

        # The name that `strategy.explain` shows.
        def sums_for_norms() -> tf.Tensor:
            with tf.device(graph_checks.CPU):
                return tf.while_loop(
                    lambda is_over: ~is_over,
                    self._add_up,
                    [tf.constant(False)],
                    parallel_iterations=1,
                )[0]

        with tensorflow_variables.clear_device():
            return tf.function(
                sums_for_norms, autograph=False
            ).get_concrete_function()

    def _add_up(self, _: tf.Tensor) -> list[tf.Tensor]:
        parts = []
        for queues in self._parts:
            (part,) = queues.take(_ONLY)
            parts.append(tf.ensure_shape(part, [None]))
        sums = tf.add_n(parts)
        is_over = tf.equal(sums[0], float(len(parts)))

        def answer() -> tf.Tensor:
            total = sums[1:]
            puts = [queues.put(_ONLY, [total]) for queues in self._totals]
            with tf.control_dependencies(puts):
                return tf.constant(False)

        return [tf.cond(is_over, lambda: tf.constant(True), answer)]

"""The function by which one parameter server lets workers go on.

One call of the chief lasts for many steps. It has the clocks of all workers,
gives tokens to those that are not too far ahead of the slowest, and takes one
event after the other. Whoever has left, or has made all its steps, holds
nobody. The ps keeps nothing but the queues.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.training.bounded import clocks as rules
from tfps_plugin.training.bounded.clocks import Clocks
from tfps_plugin.training.bounded.gate import Gate
from tfps_plugin.variables.updates.remote_queues import RemoteQueues


class Keeper:
    """Keeps the clocks of one step function on one ps.

    Attributes:
        device: Device of the ps.
        scalars: Always empty: workers update variables themselves.
        function: The concrete function. It takes the number of steps that each
            worker makes, an int64 vector, 0 for who is no member; and how many
            steps ahead of the slowest a worker may begin one, an int64 scalar.
            It returns the number of steps that each worker has made, and the
            largest lead with which one was begun.

    Threading: any thread may call the function.
    """

    def __init__(self, gate: Gate, ps: int) -> None:
        """Traces the function, in the strategy's scope.

        Args:
            gate: The gate of a step.
            ps: Index of the ps.
        """
        self.device = gate.devices[ps]
        self.scalars: list[Any] = []
        self._tokens: RemoteQueues = gate.tokens[ps]
        self._events: RemoteQueues = gate.events[ps]
        with compat.clear_device():
            self.function = tf.function(
                self._run, autograph=False
            ).get_concrete_function(
                tf.TensorSpec([gate.num_workers], tf.int64),
                tf.TensorSpec([], tf.int64),
            )

    def empty(self) -> None:
        """Takes out of queues what came too late: here, nothing does."""

    def _run(
        self, shares: tf.Tensor, max_staleness: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def goes_on(clocks: Clocks, largest: tf.Tensor) -> tf.Tensor:
            del largest
            return tf.reduce_any(rules.running(clocks, shares))

        def body(
            clocks: Clocks, largest: tf.Tensor
        ) -> tuple[Clocks, tf.Tensor]:
            granted = rules.granted(clocks, shares, max_staleness)
            leads = tf.where(granted, rules.leads(clocks, shares), 0)
            largest = tf.maximum(largest, tf.reduce_max(leads))
            clocks = rules.after_grant(clocks, granted)
            given = self._grant(granted)
            worker, is_made = self._events.take(0)
            compat.run_after(worker.op, given)
            return (
                rules.after_event(
                    clocks,
                    tf.ensure_shape(worker, []),
                    tf.ensure_shape(is_made, []),
                ),
                largest,
            )

        with tf.device(self.device):
            clocks, largest = tf.while_loop(
                goes_on,
                body,
                (rules.begun(shares), tf.zeros([], tf.int64)),
                parallel_iterations=1,
            )
            return tf.identity(clocks.made), tf.identity(largest)

    def _grant(self, is_granted: tf.Tensor) -> list[tf.Operation]:
        """Gives workers a token; returns the operations to wait for."""
        whom = tf.cast(tf.where(is_granted)[:, 0], tf.int32)

        def give(place: tf.Tensor) -> tf.Tensor:
            put = self._tokens.put(whom[place], [True])
            with tf.control_dependencies([put]):
                return place + 1

        (given,) = tf.while_loop(
            lambda place: place < tf.size(whom),
            lambda place: (give(place),),
            (tf.constant(0),),
            parallel_iterations=1,
        )
        return [given.op]

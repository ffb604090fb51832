"""One sum over the workers of each step, and the loops that add it up on a ps.

`shared_sums` says what a step needs them for.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.updates.remote_queues import RemoteQueues

# In place of the number of examples, of a worker that takes no further part.
_LEFT = -1.0


class SharedSum:
    """One sum over the workers of each step, on one ps.

    Threading: `close`, `renew` and `leave` are safe from any thread; only the
    thread that traces uses all else.

    Attributes:
        device: Device of the ps.
        operations: The operations that `total` has made; none before.
        take: The one of them that has the sum; None before.
    """

    def __init__(
        self, device: str, num_workers: int, specs: Sequence[tf.TensorSpec]
    ) -> None:
        """Prepares the queues.

        Args:
            device: Device of the ps.
            num_workers: Number of workers of the cluster.
            specs: Types of the values that are added up, of known shapes.
        """
        self.device = device
        self.operations: list[tf.Operation] = []
        self.take: tf.Operation | None = None
        self._put: tf.Operation | None = None
        self._num_workers = num_workers
        self._specs = list(specs)
        dtypes = [spec.dtype for spec in specs]
        # The number of examples, so that nobody without any batch sends a part;
        # and the values.
        self._parts = RemoteQueues(
            device, "sum_parts", num_workers, [tf.float32, *dtypes]
        )
        # The number of parts, and the sums.
        self._totals = RemoteQueues(
            device, "sum_totals", num_workers, [tf.int32, *dtypes]
        )

    def close(self) -> None:
        """Ends calls that wait at the queues."""
        self._parts.close()
        self._totals.close()

    def renew(self) -> None:
        """Replaces the queues by empty ones."""
        self._parts.renew()
        self._totals.renew()

    def leave(self, worker: int) -> None:
        """Tells the ps that a worker takes no further part.

        Args:
            worker: Index of the worker.
        """
        nothing = [
            np.zeros(spec.shape, spec.dtype.as_numpy_dtype)
            for spec in self._specs
        ]
        self._parts.put_now(worker, [_LEFT, *nothing])

    def total(
        self,
        worker: tf.Tensor,
        num_examples: tf.Tensor,
        values: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the sums over all workers; for use in a step, once.

        Args:
            worker: Index of the worker, an int32 scalar.
            num_examples: Its number of examples, a float32 scalar.
            values: Its values.

        Returns:
            The number of workers, and the sums, on the ps.
        """
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        with tf.device(self.device):
            self._put = self._parts.put(worker, [num_examples, *values])
            number, *sums = self._totals.take(worker)
            self.take = number.op
            # Not by `tf.control_dependencies`: only the choice of the queue
            # would wait, which is the same in every step.
            compat.run_after(self.take, [self._put])
            number = tf.ensure_shape(number, [])
            sums = [
                tf.ensure_shape(each, spec.shape)
                for each, spec in zip(sums, self._specs, strict=True)
            ]
        self.operations = graph.get_operations()[before:]
        return number, sums

    def run_within(
        self,
        token: tf.Operation,
        parcel: tf.Operation,
        group: "Sequence[SharedSum]",
    ) -> None:
        """Makes the exchange a part of a step, after it was traced.

        Args:
            token: Waits for the beginning of the step on the ps.
            parcel: Ends it.
            group: The sums that the ps makes together with this one.
        """
        if self._put is not None and self.take is not None:
            compat.run_after(self._put, [token])
            # The ps gives no sum before it has the parts of all.
            compat.run_after(
                self.take, [each._put for each in group if each is not self]
            )
            compat.run_after(parcel, [self.take])

    def part_of(self, worker: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Takes a part of a worker, on the ps; for use in `add_up`.

        Args:
            worker: Index of the worker, an int32 scalar.

        Returns:
            Whether the worker has left instead, and its values.
        """
        num_examples, *values = self._parts.take(worker)
        return tf.ensure_shape(num_examples, []) == _LEFT, [
            tf.ensure_shape(value, spec.shape)
            for value, spec in zip(values, self._specs, strict=True)
        ]

    def give(
        self, worker: tf.Tensor, number: tf.Tensor, sums: Sequence[tf.Tensor]
    ) -> tf.Operation:
        """Gives the sums to a worker, on the ps; for use in `add_up`.

        Args:
            worker: Index of the worker, an int32 scalar.
            number: The number of workers that have sent a part.
            sums: The sums.
        """
        return self._totals.put(worker, [number, *sums])

    def zeros(self) -> list[tf.Tensor]:
        """Returns what parts are added to."""
        return [tf.zeros(spec.shape, spec.dtype) for spec in self._specs]


def add_up(
    sums: Sequence[SharedSum], members: tf.Tensor, num_steps: tf.Tensor
) -> tf.Operation:
    """Adds up the parts of one step after the other; for an applier.

    Sums that do not need each other are made together, so that each worker has
    its part in all of them, or in none: Keras divides one by another.

    Args:
        sums: Sums on one ps that do not need each other.
        members: Whether each worker is a member, a vector.
        num_steps: Number of steps, an int64 scalar.

    Returns:
        The operation that ends after the last step, or when all members have
        left.
    """

    def body(
        number: tf.Tensor, members: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        members, totals = _collect(sums, members)
        given = _give(sums, members, totals)
        with tf.control_dependencies([given]):
            return number + 1, tf.identity(members)

    with tf.device(sums[0].device):
        number, _ = tf.while_loop(
            lambda number, members: (
                (number < num_steps) & tf.reduce_any(members)
            ),
            body,
            (tf.constant(0, tf.int64), members),
            parallel_iterations=1,
        )
        return number.op


def _collect(
    sums: Sequence[SharedSum], members: tf.Tensor
) -> tuple[tf.Tensor, list[list[tf.Tensor]]]:
    """Takes the parts of each member, in the order of the workers.

    Returns:
        Who has not left, and the totals of each sum.
    """
    whom = tf.cast(tf.where(members)[:, 0], tf.int32)

    def add(
        place: tf.Tensor, has_left: tf.Tensor, totals: list[list[tf.Tensor]]
    ) -> tuple[tf.Tensor, tf.Tensor, list[list[tf.Tensor]]]:
        worker = whom[place]
        parts = [each.part_of(worker) for each in sums]
        # It may have left when it had sent some of its parts.
        leaves = tf.reduce_any([leaves for leaves, _ in parts])
        has_left |= leaves & (tf.range(tf.size(members)) == worker)
        totals = [
            [
                tf.where(leaves, total, total + value)
                for total, value in zip(before, values, strict=True)
            ]
            for before, (_, values) in zip(totals, parts, strict=True)
        ]
        return place + 1, has_left, totals

    _, has_left, totals = tf.while_loop(
        lambda place, *_: place < tf.size(whom),
        add,
        (
            tf.constant(0),
            tf.zeros_like(members),
            [each.zeros() for each in sums],
        ),
        parallel_iterations=1,
    )
    return members & ~has_left, totals


def _give(
    sums: Sequence[SharedSum],
    members: tf.Tensor,
    totals: Sequence[Sequence[tf.Tensor]],
) -> tf.Operation:
    """Gives the totals of all sums to each member."""
    whom = tf.cast(tf.where(members)[:, 0], tf.int32)

    def give(place: tf.Tensor) -> tf.Tensor:
        puts = [
            each.give(whom[place], tf.size(whom), total)
            for each, total in zip(sums, totals, strict=True)
        ]
        with tf.control_dependencies(puts):
            return place + 1

    (given,) = tf.while_loop(
        lambda place: place < tf.size(whom),
        lambda place: (give(place),),
        (tf.constant(0),),
    )
    return given.op

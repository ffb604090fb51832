"""Sums over the workers of a synchronous step, before its end.

`all_reduce` needs them, as of a `BatchNormalization` with `synchronized=True`.
Workers do not see each other: each sends its part to one parameter server,
where a loop adds up the parts of all, and sends the sum to each. That is one
exchange of messages more for all sums that do not need each other, and another
one for their gradients. A worker that leaves before it has sent its parts of
all these sums has a part in none of them.

A step makes every exchange between its token and its parcel on that parameter
server. So no loop is ahead of the steps, or behind them, and a step makes as
many exchanges as its function has, though nothing may need a result.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.synchronous.sums import example_weights
from tfps_plugin.training.synchronous.sums.sum_loops import SharedSum

# Returns the index of the worker and its number of examples, of use in the
# function that is being traced.
Member = Callable[[], tuple[tf.Tensor, tf.Tensor]]


class SharedSums:
    """The sums of one step function.

    Sums that do not need each other are on one ps, so that one message has the
    parts of all. Those that need them are on the next ps.

    Threading: as `SharedSum`.
    """

    def __init__(self, devices: Sequence[str], num_workers: int) -> None:
        """Begins without a sum.

        Args:
            devices: Device of each ps.
            num_workers: Number of workers of the cluster.
        """
        self._devices = list(devices)
        self._num_workers = num_workers
        # Sums that do not need each other, in the order of the step.
        self._groups: list[list[SharedSum]] = []
        # The operations that have the sums of the last group, and the number
        # of operations before it.
        self._latest: set[tf.Operation] = set()
        self._start = 0

    def on(self, ps: int) -> list[SharedSum]:
        """Returns the sums on a ps.

        Args:
            ps: Index of the ps.
        """
        return [each for group in self.groups_on(ps) for each in group]

    def groups_on(self, ps: int) -> list[list[SharedSum]]:
        """Returns the sums on a ps; those in one list do not need each other.

        Args:
            ps: Index of the ps.
        """
        # One ps after the other has a group.
        return self._groups[ps :: len(self._devices)]

    def close(self, ps: int) -> None:
        """Ends calls that wait at the queues of a ps."""
        for each in self.on(ps):
            each.close()

    def renew(self, ps: int) -> None:
        """Replaces the queues of a ps by empty ones."""
        for each in self.on(ps):
            each.renew()

    def leave(self, worker: int, ps: int) -> None:
        """Tells a ps that a worker takes no further part."""
        for each in self.on(ps):
            each.leave(worker)

    @property
    def operations(self) -> set[tf.Operation]:
        """The operations of all sums, in the step."""
        return {
            operation
            for group in self._groups
            for each in group
            for operation in each.operations
        }

    def all_reduce(
        self, reduce_op: Any, values: Sequence[Any], member: Member
    ) -> list[tf.Tensor]:
        """Returns sums or means over workers; for use in a step.

        The loss of a step is the mean over the examples of all workers, and a
        worker's gradient will be multiplied by its number of examples. So what
        it gets of the gradients of all is weighed by their numbers of examples,
        and divided by its own.

        Args:
            reduce_op: A `tf.distribute.ReduceOp`.
            values: The worker's values, of known shapes.
            member: Returns what is known of the worker.

        Returns:
            A tensor for each value.

        Raises:
            UnsupportedError: If they cannot be added up.
        """
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        for value in values:
            _require_summable(value, is_mean=is_mean)
        return self._differentiable(
            list(values), member, is_mean=is_mean, is_gradient=False
        )

    def _differentiable(
        self,
        values: Sequence[tf.Tensor],
        member: Member,
        *,
        is_mean: bool,
        is_gradient: bool,
    ) -> list[tf.Tensor]:
        """Makes sums whose gradients are sums too, and so on."""
        # Not in the function: it may use no variables.
        worker, num_examples = member()

        @tf.custom_gradient
        def reduced(*mine: tf.Tensor) -> Any:
            def gradient(*theirs: tf.Tensor) -> list[tf.Tensor | None]:
                places = [
                    place
                    for place, value in enumerate(mine)
                    if value.dtype.is_floating or value.dtype.is_complex
                ]
                found: list[tf.Tensor | None] = [None] * len(mine)
                if places:
                    given = self._differentiable(
                        [theirs[place] for place in places],
                        member,
                        is_mean=is_mean,
                        is_gradient=not is_gradient,
                    )
                    for place, each in zip(places, given, strict=True):
                        found[place] = each
                return found

            if not is_gradient:
                sums = self._exchanged(
                    worker, num_examples, mine, is_mean=is_mean
                )
                return sums, gradient
            # Weights are too small for half precision.
            wide = [
                tf.cast(each, tf.float32) if each.dtype.size < 4 else each
                for each in mine
            ]
            weights = [
                example_weights.of(num_examples, each.dtype) for each in wide
            ]
            sums = self._exchanged(
                worker,
                num_examples,
                [a * b for a, b in zip(wide, weights, strict=True)],
                is_mean=is_mean,
            )
            return [
                tf.cast(tf.math.divide_no_nan(a, b), each.dtype)
                for a, b, each in zip(sums, weights, mine, strict=True)
            ], gradient

        # `tf.custom_gradient` takes tensors only. The gradient of `tf.gather`
        # is none, but `tf.reshape` makes one of it.
        return [tf.reshape(each, each.shape) for each in reduced(*values)]

    def _exchanged(
        self,
        worker: tf.Tensor,
        num_examples: tf.Tensor,
        values: Sequence[tf.Tensor],
        *,
        is_mean: bool,
    ) -> list[tf.Tensor]:
        """Makes an exchange, and returns the sums or means on the worker."""
        operations = tf.compat.v1.get_default_graph().get_operations()
        if not self._groups or _wait_for(
            values, self._latest, operations[self._start :]
        ):
            self._groups.append([])
            self._latest = set()
            self._start = len(operations)
        place = (len(self._groups) - 1) % len(self._devices)
        shared = SharedSum(
            self._devices[place],
            self._num_workers,
            [tf.TensorSpec(each.shape, each.dtype) for each in values],
        )
        self._groups[-1].append(shared)
        number, sums = shared.total(worker, num_examples, values)
        self._latest.add(shared.take)
        if is_mean:
            with tf.device(shared.device):
                sums = [each / tf.cast(number, each.dtype) for each in sums]
        return [tf.identity(each) for each in sums]


def _require_summable(value: Any, *, is_mean: bool) -> None:
    """Refuses what cannot be added up.

    Raises:
        UnsupportedError: If the value is no tensor of numbers of a known shape,
            or if the mean of integers is wanted.
    """
    if not isinstance(value, tf.Tensor) or not value.shape.is_fully_defined():
        raise errors.UnsupportedError(
            "all_reduce() in a synchronous step adds up tensors of known "
            f"shapes. Expected such a tensor. Received: value={value!r}. Set "
            "its shape, for example with tf.ensure_shape()."
        )
    is_fraction = value.dtype.is_floating or value.dtype.is_complex
    if not is_fraction and (is_mean or not value.dtype.is_integer):
        raise errors.UnsupportedError(
            "all_reduce() in a synchronous step adds up numbers, and makes "
            "means of those that are no integers. Expected such a dtype. "
            f"Received: value={value!r}. Cast it, for example to float32."
        )


def _wait_for(
    values: Sequence[tf.Tensor],
    earlier: Collection[tf.Operation],
    operations: Sequence[tf.Operation],
) -> bool:
    """Returns whether values wait for some earlier operations.

    Args:
        values: The values.
        earlier: The earlier operations.
        operations: All operations since the earlier ones, in their order.
    """
    waiting = set(earlier)
    # What orders operations at the end of a function: those that use the same
    # resource, and those with effects elsewhere.
    orders: set[int | None] = set()
    for operation in operations:
        own: set[int | None] = {
            id(tensor)
            for tensor in operation.inputs
            if tensor.dtype == tf.resource
        }
        if not own and operation.op_def.is_stateful:
            own = {None}
        before = {tensor.op for tensor in operation.inputs}
        before.update(operation.control_inputs, [operation])
        if before & waiting or own & orders:
            waiting.add(operation)
            orders |= own
    return any(value.op in waiting for value in values)

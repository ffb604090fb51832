"""Results of a function that several workers or replicas have run."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class ReplicaResults(tf.distribute.DistributedValues):
    """One result of each replica that has taken part in a step.

    `ClusterCoordinator.fetch` returns it: of a synchronous step, those of all
    workers; and of each worker, those of all its replicas that had examples.
    `strategy.reduce`, `strategy.gather` and
    `strategy.experimental_local_results` take it.

    Attributes:
        values: The results, in the order of workers and replicas: tensors on
            their workers, or NumPy arrays once they were fetched.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        """Takes the results of one worker, or replica, after the other."""
        self.values = tuple(values)

    def __repr__(self) -> str:
        """Returns the results as a short text."""
        return f"ReplicaResults({', '.join(map(repr, self.values))})"

    __str__ = __repr__

    def reduced(
        self, reduce_op: Any, axis: int | Sequence[int] | None = None
    ) -> Any:
        """Returns the sum or the mean over results.

        As `tf.distribute.Strategy.reduce`.

        Args:
            reduce_op: A `tf.distribute.ReduceOp`, or its name.
            axis: An axis of each result to reduce as well, or several. Then a
                mean is one over all elements along it, also if workers have
                different numbers of them.

        Returns:
            A tensor.

        Raises:
            ValueError: If `reduce_op` is neither a sum nor a mean.
        """
        values = [tf.convert_to_tensor(value) for value in self.values]
        operation = getattr(reduce_op, "value", reduce_op)
        name = str(operation).upper()
        if name not in ("SUM", "MEAN"):
            raise ValueError(
                'reduce_op must be "SUM" or "MEAN". Received: '
                f"reduce_op={reduce_op!r}"
            )
        numbers = [1] * len(values)
        if axis is not None:
            axes = [axis] if isinstance(axis, int) else list(axis)
            numbers = [
                math.prod(int(value.shape[each]) for each in axes)
                for value in values
            ]
            values = [tf.reduce_sum(value, axes) for value in values]
        total = tf.add_n(values)
        if name == "SUM":
            return total
        return tf.math.divide(total, tf.cast(sum(numbers), total.dtype))

    def gathered(self, axis: int) -> tf.Tensor:
        """Returns the results one behind the other.

        As `tf.distribute.Strategy.gather`.

        Args:
            axis: The axis along which to put them.
        """
        return tf.concat(
            [np.asarray(value) for value in self.values], axis=axis
        )

"""Shares of the replicas of a worker in a step, and means over them.

Shape legend: R replicas.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows


class Shares:
    """Weights of replicas in the mean over the examples of a worker.

    The loss of a replica is the mean over its own examples, so the mean over
    all is weighed by their numbers. A replica without examples computes on
    those of another, and has no weight: whatever it computes is left out, also
    if it is not finite.

    Attributes:
        num_replicas: Number of replicas, R.
        sizes: Number of examples of each replica, int64 scalars.

    Threading: only the thread that traces uses it.
    """

    def __init__(self, sizes: Sequence[tf.Tensor]) -> None:
        """Computes the weights, in the function of the step.

        Args:
            sizes: Number of examples of each replica, int64 scalars.
        """
        self.num_replicas = len(sizes)
        self.sizes = list(sizes)
        with tf.device(graph_checks.CPU):
            total = tf.maximum(tf.add_n([*sizes]), 1)
            self._weights = [
                tf.cast(size / total, tf.float32) for size in sizes
            ]
            self._are_present = [size > 0 for size in sizes]

    def weight(self, index: int, dtype: tf.DType) -> tf.Tensor:
        """Returns the weight of a replica, a scalar.

        Args:
            index: Index of the replica.
            dtype: Dtype of the weight.
        """
        with tf.device(graph_checks.CPU):
            return tf.cast(self._weights[index], dtype)

    def is_present(self, index: int) -> tf.Tensor:
        """Returns whether a replica has examples, a boolean scalar.

        Args:
            index: Index of the replica.
        """
        return self._are_present[index]

    def num_present(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the number of replicas that have examples, a scalar.

        Args:
            dtype: Dtype of the number.
        """
        with tf.device(graph_checks.CPU):
            return tf.cast(
                tf.math.count_nonzero(tf.stack(self._are_present)), dtype
            )

    def mean(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the mean over examples.

        Args:
            values: A floating-point tensor of each replica.
        """
        return _sum(
            [
                # Zero where the weight is, also of what is not finite.
                tf.math.multiply_no_nan(value, self.weight(index, value.dtype))
                for index, value in enumerate(values)
            ]
        )

    def sum(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the sum over replicas.

        Args:
            values: A tensor of numbers of each replica.
        """
        return _sum(
            [
                tf.where(self._are_present[index], value, tf.zeros_like(value))
                for index, value in enumerate(values)
            ]
        )

    def mean_gradient(self, gradients: Sequence[Any]) -> Any:
        """Returns the gradient of the mean loss of all examples.

        Args:
            gradients: The gradient of each replica: a tensor or
                `tf.IndexedSlices`; None for zero.

        Returns:
            A tensor or slices; None if all are.
        """
        given = [
            (index, each)
            for index, each in enumerate(gradients)
            if each is not None
        ]
        if not given:
            return None
        if all(isinstance(each, tf.IndexedSlices) for _, each in given):
            return self._mean_slices(given)
        return _sum(
            [
                self._weighed(index, tf.convert_to_tensor(each))
                for index, each in given
            ]
        )

    def _weighed(self, index: int, values: tf.Tensor) -> tf.Tensor:
        return tf.math.multiply_no_nan(values, self.weight(index, values.dtype))

    def _mean_slices(
        self, given: Sequence[tuple[int, tf.IndexedSlices]]
    ) -> tf.IndexedSlices:
        values = [
            self._weighed(index, tf.convert_to_tensor(each.values))
            for index, each in given
        ]
        _, first = given[0]
        if isinstance(first, DistinctRows) and all(
            isinstance(each, DistinctRows) and each.has_ids_of(first)
            for _, each in given
        ):
            return first.with_values(_sum(values))
        ids = [tf.convert_to_tensor(each.indices) for _, each in given]
        dtype = ids[0].dtype if len({e.dtype for e in ids}) == 1 else tf.int64
        with tf.device(graph_checks.CPU):
            joined = tf.concat([tf.cast(each, dtype) for each in ids], 0)
        return tf.IndexedSlices(tf.concat(values, 0), joined, first.dense_shape)


def _sum(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns a sum by plain additions, which a ps can repeat."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total

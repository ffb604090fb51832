"""Numbers of ids of many features.

Shape legend: F features, B ids of each if all have the same number, N ids in
total, S of those.
"""

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.lookup import graph_checks


class IdCounts(abc.ABC):
    """Numbers of ids by feature; arranges and cuts tensors accordingly.

    Such a tensor has one row for each id, feature by feature.
    """

    def of_each_id(
        self, of_features: Sequence[int], dtype: tf.DType
    ) -> tf.Tensor:
        """Returns, for each id, the value of its feature, shape `(N,)`.

        Args:
            of_features: A value for each feature.
            dtype: Dtype of the result.

        Returns:
            The values; a scalar if all features have the same value.
        """
        if len(set(of_features)) == 1:
            return tf.constant(of_features[0], dtype)
        return self._filled_in(of_features, dtype)

    def arranged(self, values_N: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
        """Reorders values by feature.

        Args:
            values_N: A value for each id, in the order of these counts.
            order: Numbers of the features in the new order.
        """
        if _is_sorted(order):
            return values_N
        return self._in_order(values_N, order)

    @abc.abstractmethod
    def features_of(self, places_S: tf.Tensor) -> tf.Tensor:
        """Returns the numbers of the features that some ids belong to.

        Args:
            places_S: Numbers of ids, int64.
        """

    @abc.abstractmethod
    def cut(self, rows: tf.Tensor, order: Sequence[int]) -> list[tf.Tensor]:
        """Cuts a tensor into one piece for each feature.

        Args:
            rows: A row for each id, in the order of `arranged`.
            order: The order that `arranged` was given.
        """

    @abc.abstractmethod
    def _filled_in(
        self, of_features: Sequence[int], dtype: tf.DType
    ) -> tf.Tensor:
        """Implements `of_each_id` for values that differ between features."""

    @abc.abstractmethod
    def _in_order(self, values_N: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
        """Implements `arranged` for an order that is not sorted."""


class EqualCounts(IdCounts):
    """Counts of features that all have the same number of ids."""

    def __init__(self, ids_FB: tf.Tensor) -> None:
        """Takes the ids of F features; F is known statically."""
        self._num_features = int(ids_FB.shape[0])
        self._shape = tf.shape(ids_FB)

    def _filled_in(
        self, of_features: Sequence[int], dtype: tf.DType
    ) -> tf.Tensor:
        known_F1 = tf.constant([[known] for known in of_features], dtype)
        return tf.reshape(tf.broadcast_to(known_F1, self._shape), [-1])

    def features_of(self, places_S: tf.Tensor) -> tf.Tensor:
        return tf.cast(places_S, tf.int32) // self._shape[1]

    def cut(self, rows: tf.Tensor, order: Sequence[int]) -> list[tf.Tensor]:
        del order
        return list(tf.split(rows, self._num_features))

    def _in_order(self, values_N: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
        values_FB = tf.reshape(values_N, self._shape)
        return tf.reshape(tf.gather(values_FB, np.array(order)), [-1])


class CountsOfEach(IdCounts):
    """Counts of features with any number of ids each."""

    def __init__(self, ids: Sequence[tf.Tensor]) -> None:
        """Takes a vector of ids for each feature, all of one dtype."""
        self._counts: Any = tf.raw_ops.ShapeN(input=ids)
        self._counts_F = tf.concat(self._counts, 0)

    def _filled_in(
        self, of_features: Sequence[int], dtype: tf.DType
    ) -> tf.Tensor:
        # Takes a quarter of the time of a lookup for each id, with 26 features
        # of 512 ids.
        return tf.concat(
            [
                tf.fill(count, tf.constant(known, dtype))
                for known, count in zip(of_features, self._counts, strict=True)
            ],
            0,
        )

    def features_of(self, places_S: tf.Tensor) -> tf.Tensor:
        features_1S = tf.raw_ops.UpperBound(
            sorted_inputs=tf.cumsum(self._counts_F)[None],
            values=tf.cast(places_S, tf.int32)[None],
        )
        return tf.squeeze(features_1S, 0)

    def cut(self, rows: tf.Tensor, order: Sequence[int]) -> list[tf.Tensor]:
        if len(order) == 1:
            return [rows]
        counts_F = self._counts_F
        if not _is_sorted(order):
            with tf.device(graph_checks.CPU):
                counts_F = tf.gather(counts_F, np.array(order))
        return list(tf.split(rows, counts_F, num=len(order)))

    def _in_order(self, values_N: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
        parts = tf.split(values_N, self._counts_F, num=len(order))
        return tf.concat([parts[number] for number in order], 0)


def _is_sorted(order: Sequence[int]) -> bool:
    return list(order) == sorted(order)

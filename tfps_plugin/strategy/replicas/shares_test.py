"""Tests of means over the examples of all replicas."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.strategy.replicas.shares import Shares
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup.distinct_rows import DistinctRows
from tfps_plugin.variables.lookup.shard_order import ShardOrder

_NAN = float("nan")


def _shares(*sizes: int) -> Shares:
    return Shares([tf.constant(size, tf.int64) for size in sizes])


def test_the_mean_is_over_examples() -> None:
    values = [tf.constant([1.0]), tf.constant([4.0]), tf.constant([_NAN])]
    shares = _shares(2, 1, 0)
    assert shares.mean(values).numpy().tolist() == [2.0]
    assert shares.sum(values).numpy().tolist() == [5.0]
    assert shares.num_present(tf.float32).numpy() == 2.0
    assert [bool(shares.is_present(i)) for i in range(3)] == [True, True, False]


def test_a_batch_without_examples_has_no_gradient() -> None:
    mean = _shares(0, 0).mean_gradient([tf.constant([_NAN])] * 2)
    assert mean.numpy().tolist() == [0.0]


@pytest.mark.parametrize("given", [[None, None], [None, 3.0]])
def test_a_missing_gradient_is_zero(given: list[Any]) -> None:
    gradients = [None if each is None else tf.constant(each) for each in given]
    mean = _shares(1, 2).mean_gradient(gradients)
    assert (None if mean is None else float(mean)) == (
        None if given[1] is None else 2.0
    )


def _slices(ids: list[int], *rows: float) -> tf.IndexedSlices:
    return tf.IndexedSlices(
        tf.constant([[row] for row in rows]), tf.constant(ids)
    )


def test_gradients_of_rows_are_weighed_and_put_together() -> None:
    mean = _shares(1, 3).mean_gradient(
        [_slices([5, 1], 4.0, 8.0), _slices([5], 4.0)]
    )
    assert mean.indices.numpy().tolist() == [5, 1, 5]
    np.testing.assert_allclose(mean.values, [[1.0], [2.0], [3.0]])


def test_gradients_of_one_lookup_are_added_up() -> None:
    ids_U = tf.constant([5, 1])
    layout = testing.remote_variable(tf.zeros([9, 1])).layout
    order = ShardOrder(layout, ids_U, [ids_U], None, tf.size(ids_U))
    mean = _shares(1, 1).mean_gradient(
        [
            DistinctRows(tf.constant([[2.0], [0.0]]), ids_U, None, order),
            DistinctRows(tf.constant([[4.0], [6.0]]), ids_U, None, order),
        ]
    )
    assert isinstance(mean, DistinctRows)
    np.testing.assert_allclose(mean.values, [[3.0], [3.0]])


def test_rows_and_dense_gradients_are_a_dense_one() -> None:
    slices = tf.IndexedSlices(
        tf.constant([[2.0]]), tf.constant([1]), tf.constant([2, 1])
    )
    mean = _shares(1, 1).mean_gradient([slices, tf.constant([[4.0], [6.0]])])
    np.testing.assert_allclose(mean, [[2.0], [4.0]])

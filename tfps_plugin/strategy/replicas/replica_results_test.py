"""Tests of the results of several workers."""

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.strategy.replicas.replica_results import ReplicaResults

_UNEVEN = ReplicaResults([np.array([1.0, 2.0, 6.0]), np.array([5.0])])


def test_results_of_workers_are_added_up_or_averaged() -> None:
    results = ReplicaResults([np.float32(1.0), np.float32(2.5)])
    assert results.reduced("SUM").numpy() == 3.5
    assert results.reduced(tf.distribute.ReduceOp.MEAN).numpy() == 1.75


def test_a_mean_of_integers_is_a_fraction() -> None:
    assert ReplicaResults([1, 2]).reduced("mean").numpy() == 1.5


def test_a_mean_along_an_axis_is_over_all_elements() -> None:
    assert _UNEVEN.reduced("MEAN", 0).numpy() == 14.0 / 4
    assert _UNEVEN.reduced("SUM", 0).numpy() == 14.0
    rows = ReplicaResults([np.ones([2, 3]), np.zeros([1, 3])])
    np.testing.assert_allclose(rows.reduced("MEAN", 0), [2 / 3] * 3)
    np.testing.assert_allclose(
        ReplicaResults([np.ones([2, 3]), np.ones([2, 3])]).reduced("MEAN", -1),
        [1.0, 1.0],
    )


def test_a_mean_along_two_axes_is_over_all_elements() -> None:
    results = ReplicaResults([np.ones([2, 3]), np.full([1, 3], 4.0)])
    assert results.reduced("MEAN", (0, 1)).numpy() == 2.0


def test_results_are_put_one_behind_the_other() -> None:
    np.testing.assert_array_equal(_UNEVEN.gathered(0), [1.0, 2.0, 6.0, 5.0])


def test_another_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="reduce_op='MAX'"):
        _UNEVEN.reduced("MAX")


def test_it_shows_its_values() -> None:
    assert repr(ReplicaResults([1, 2])) == "ReplicaResults(1, 2)"
    assert str(ReplicaResults([])) == "ReplicaResults()"

"""Tests of values of the replicas of a worker."""

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.strategy.replicas import per_replica
from tfps_plugin.strategy.replicas.per_replica import PerReplica


def _numbers(*numbers: int) -> list[tf.Tensor]:
    return [tf.constant(number, tf.int64) for number in numbers]


_UNEVEN = PerReplica(
    [tf.constant([1.0, 2.0, 6.0]), tf.constant([5.0])], _numbers(3, 1)
)


def test_functions_and_datasets_take_and_return_it() -> None:
    @tf.function
    def doubled(value: PerReplica) -> PerReplica:
        first, second = value.values
        return PerReplica([2.0 * first, second], value.num_examples)

    result = doubled(_UNEVEN)
    assert result.values[0].numpy().tolist() == [2.0, 4.0, 12.0]
    dataset = tf.data.Dataset.from_tensors(1).map(lambda _: _UNEVEN)
    (element,) = dataset
    assert element.values[1].numpy().tolist() == [5.0]
    assert [int(number) for number in element.num_examples] == [3, 1]


def test_it_is_reduced_as_results_of_workers_are() -> None:
    value = PerReplica([tf.constant(1.0), tf.constant(2.5)])
    assert value.reduced("SUM").numpy() == 3.5
    assert value.reduced(tf.distribute.ReduceOp.MEAN).numpy() == 1.75
    assert _UNEVEN.reduced("mean", 0).numpy() == 14.0 / 4
    assert PerReplica([tf.constant(1), tf.constant(2)]).reduced("mean") == 1.5
    with pytest.raises(ValueError, match="reduce_op='MAX'"):
        value.reduced("MAX")


def test_replicas_without_examples_do_not_count() -> None:
    value = PerReplica(
        [tf.constant([4.0]), tf.constant([float("nan")])], _numbers(1, 0)
    )
    assert value.reduced("SUM").numpy().tolist() == [4.0]
    assert value.reduced("MEAN").numpy().tolist() == [4.0]
    assert value.reduced("MEAN", 0).numpy() == 4.0
    assert value.mean_over_examples().numpy().tolist() == [4.0]
    assert value.gathered(0).numpy().tolist() == [4.0]


def test_the_mean_over_examples_weighs_replicas() -> None:
    value = PerReplica([tf.constant(1.0), tf.constant(4.0)], _numbers(2, 1))
    assert value.mean_over_examples().numpy() == 2.0
    unknown = PerReplica([tf.constant(1.0), tf.constant(4.0)])
    assert unknown.mean_over_examples().numpy() == 2.5


def test_values_are_put_one_behind_the_other() -> None:
    np.testing.assert_array_equal(_UNEVEN.gathered(0), [1.0, 2.0, 6.0, 5.0])


def test_each_replica_gets_its_own() -> None:
    structure = {"batch": _UNEVEN, "rate": 0.5}
    second = per_replica.of_replica(structure, 1, 2)
    assert second["batch"].numpy().tolist() == [5.0]
    assert second["rate"] == 0.5


def test_values_for_another_number_of_replicas_are_refused() -> None:
    with pytest.raises(errors.InputError, match="Expected 3, one for each"):
        per_replica.of_replica(_UNEVEN, 0, 3)


def test_results_of_replicas_are_one_structure() -> None:
    joined = per_replica.together(
        [(tf.constant(1), "name", None), (tf.constant(2), "name", None)]
    )
    assert [int(value) for value in joined[0].values] == [1, 2]
    assert joined[1:] == ("name", None)
    with pytest.raises(errors.InputError, match=r"\('a', 'b'\)"):
        per_replica.together(["a", "b"])


def test_it_shows_its_values() -> None:
    assert repr(PerReplica([1, 2])) == str(PerReplica([1, 2]))
    assert str(PerReplica([1, 2])) == "PerReplica(1, 2)"

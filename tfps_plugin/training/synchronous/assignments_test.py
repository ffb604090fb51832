"""Tests of values that a synchronous step assigns."""

from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin.training.synchronous import assignments
from tfps_plugin.variables import testing


def _addend(value_of: Any, variable: Any) -> Any:
    """Returns what is found to be added for a batch of 2 and 3."""
    is_addition: list[bool] = []

    @tf.function(
        input_signature=[tf.TensorSpec([2], tf.float32)], autograph=False
    )
    def step(batch: tf.Tensor) -> tf.Tensor:
        addend = assignments.as_addition(variable, value_of(batch, variable))
        is_addition.append(addend is not None)
        return tf.zeros([]) if addend is None else addend

    addend = step(tf.constant([2.0, 3.0]))
    return addend.numpy().tolist() if is_addition[0] else None


@pytest.mark.parametrize(
    ("value_of", "expected"),
    [
        (lambda batch, variable: variable + batch, [2.0, 3.0]),
        (lambda batch, variable: batch + variable, [2.0, 3.0]),
        (lambda batch, variable: variable - batch, [-2.0, -3.0]),
        (lambda batch, variable: batch - variable, None),
        (lambda batch, variable: variable * batch, None),
        (lambda batch, variable: batch, None),
    ],
)
def test_the_variable_plus_an_addend_is_an_addition(
    value_of: Any, expected: Any
) -> None:
    variable = testing.remote_variable([10.0, 20.0])
    assert _addend(value_of, variable) == expected


def test_a_table_in_pieces_is_never_found_to_be_an_addition() -> None:
    table = testing.sharded_variable([10.0, 20.0], 2)
    assert _addend(lambda batch, variable: variable + batch, table) is None


def test_the_handles_of_a_variable_are_those_of_its_shards() -> None:
    variable = testing.remote_variable([1.0, 2.0])
    table = testing.sharded_variable([1.0, 2.0], 2)

    @tf.function(autograph=False)
    def step() -> None:
        (handle,) = assignments.handles_of(variable)
        assert handle is variable.handle
        handles = assignments.handles_of(table)
        expected = [shard.handle for shard in table.variables]
        assert [id(each) for each in handles] == [id(each) for each in expected]

    step.get_concrete_function()

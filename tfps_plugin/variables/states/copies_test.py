"""Tests that states get the rules that functions require, or are refused."""

from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_seeds import WorkerLocalSeed
from tfps_plugin.variables.states import copies
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.states.merge_rule import MergeRule

_X = tf.TensorSpec([], tf.float32)


def _graph(function: Any) -> tf.Graph:
    return tf.function(function).get_concrete_function(_X).graph


def _state(name: str, **options: Any) -> WorkerLocalVariable:
    return WorkerLocalVariable(tf.constant(0.0), name, **options)


def test_functions_of_the_program_settle_the_rules() -> None:
    largest, average = _state("largest"), _state("average")
    copies.settle_or_refuse(
        _graph(lambda x: largest.assign(tf.maximum(largest, x)))
    )
    assert largest.rule is MergeRule.MAX
    with pytest.raises(errors.UnsupportedError, match="'average'"):
        copies.settle_or_refuse(
            _graph(lambda x: average.assign(0.5 * average + x))
        )
    with pytest.raises(errors.UnsupportedError, match="'largest'"):
        copies.settle_or_refuse(_graph(lambda x: largest.assign_add(x)))
    copies.settle_or_refuse(_graph(lambda x: x + 1.0))


def test_what_the_program_says_wins() -> None:
    total = _state("total", rule_is_given=True)
    first = _state(
        "first", aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )

    def update(x: tf.Tensor) -> None:
        total.assign(0.5 * total + x)
        first.assign(0.5 * first + x)

    assert copies.settle(Flow(_graph(update))) == []
    assert total.rule is MergeRule.SUM
    assert first.rule is MergeRule.FIRST


def test_a_seed_needs_no_rule() -> None:
    seed = WorkerLocalSeed(
        tf.constant([1, 0]),
        "seed",
        synchronization=tf.VariableSynchronization.AUTO,
        aggregation=tf.VariableAggregation.NONE,
    )
    flow = Flow(_graph(lambda x: seed.assign(seed * 3)))
    assert copies.of(flow) == []
    assert copies.settle(flow) == []


def test_a_state_given_as_a_variable_of_a_nested_function() -> None:
    total, largest = _state("total"), _state("largest")

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        total.assign_add(x)
        return tf.maximum(largest, x)

    copies.settle_or_refuse(_graph(lambda x: largest.assign(inner(x))))
    assert total.rule is MergeRule.SUM
    assert largest.rule is MergeRule.MAX

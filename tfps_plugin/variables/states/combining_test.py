"""Tests of the rule by which the values of parts of a step are combined."""

from typing import Any

import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables import testing
from tfps_plugin.variables.states import combining


def _rule(
    value_of: Any,
    method: str = "assign",
    dtype: str = "float32",
    **options: Any,
) -> str:
    """Returns the rule for a value that is computed from a batch `(B,)`."""
    variable = testing.remote_variable(tf.zeros([], dtype), **options)
    found = []

    def step(batch: tf.Tensor) -> None:
        value = tf.cast(value_of(batch, variable), dtype)
        found.append(combining.how_to_combine(variable, method, value))

    tf.function(step, autograph=False).get_concrete_function(
        tf.TensorSpec([None], tf.float32)
    )
    return str(found[0])


def _of_batch(batch: tf.Tensor, variable: Any) -> tf.Tensor:
    del variable
    return tf.reduce_mean(batch)


def _of_variable(batch: tf.Tensor, variable: Any) -> tf.Tensor:
    del batch
    return tf.convert_to_tensor(variable) * 2


def _random(batch: tf.Tensor, variable: Any) -> tf.Tensor:
    del batch, variable
    return tf.random.uniform([])


def _random_of_own_seed(batch: tf.Tensor, variable: Any) -> tf.Tensor:
    del batch
    seed = tf.cast(tf.stack([variable, variable]), tf.int32)
    return tf.random.stateless_uniform([], seed)


@pytest.mark.parametrize(
    ("aggregation", "rule"),
    [
        (tf.VariableAggregation.MEAN, "mean"),
        (tf.VariableAggregation.ONLY_FIRST_REPLICA, "first"),
    ],
)
@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_the_aggregation_decides(
    aggregation: Any, rule: str, method: str
) -> None:
    assert _rule(_of_batch, method, aggregation=aggregation) == rule
    assert _rule(_of_variable, method, aggregation=aggregation) == rule


@pytest.mark.parametrize("method", ["assign_add", "assign_sub"])
def test_additions_of_a_sum_are_summed(method: str) -> None:
    total = tf.VariableAggregation.SUM
    assert _rule(_of_batch, method, aggregation=total) == "sum"
    assert _rule(_of_variable, method, aggregation=total) == "sum"


@pytest.mark.parametrize(
    "dtype",
    [
        "int64",
        "float32",
    ],
)
@pytest.mark.parametrize("value_of", [_of_batch, _random])
def test_a_sum_of_what_each_worker_assigns_is_refused(
    value_of: Any, dtype: str
) -> None:
    """Each of them would have a share of the old value in it."""
    total = tf.VariableAggregation.SUM
    with pytest.raises(errors.UnsupportedError, match=r"by assign.*aggreg"):
        _rule(value_of, "assign", dtype, aggregation=total)


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_sum_takes_a_value_that_is_the_same_on_all_workers(
    dtype: str,
) -> None:
    total = tf.VariableAggregation.SUM
    assert _rule(_of_variable, "assign", dtype, aggregation=total) == "first"


def test_a_float_that_depends_on_the_batch_becomes_the_mean() -> None:
    assert _rule(_of_batch) == "mean"


@pytest.mark.parametrize("as_optional", [False, True])
def test_a_float_that_depends_on_what_a_step_reads_becomes_the_mean(
    as_optional: bool,
) -> None:
    dataset = tf.data.Dataset.from_tensors(tf.ones([3])).repeat()
    iterator = iter(dataset)

    def of_input(batch: tf.Tensor, variable: Any) -> tf.Tensor:
        if as_optional:
            return _of_batch(iterator.get_next_as_optional().get_value(), 0)
        return _of_batch(next(iterator), 0)

    assert _rule(of_input) == "mean"


def test_a_float_of_a_python_function_becomes_the_mean() -> None:
    def of_python(batch: tf.Tensor, variable: Any) -> tf.Tensor:
        del batch, variable
        return tf.py_function(lambda: 1.0, [], tf.float32)

    assert _rule(of_python) == "mean"


@pytest.mark.parametrize("method", ["assign_add", "assign_sub"])
def test_a_trainable_float_changes_by_the_mean(method: str) -> None:
    assert _rule(_of_batch, method, trainable=True) == "mean"


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_value_that_is_the_same_on_all_workers_counts_once(
    dtype: str, method: str
) -> None:
    assert _rule(_of_variable, method, dtype) == "first"


def test_a_mean_of_integers_is_no_rule() -> None:
    mean = tf.VariableAggregation.MEAN
    assert _rule(_of_variable, dtype="int64", aggregation=mean) == "first"
    with pytest.raises(errors.UnsupportedError, match="aggregation"):
        _rule(_of_batch, dtype="int64", aggregation=mean)


@pytest.mark.parametrize("value_of", [_of_batch, _random])
@pytest.mark.parametrize(
    ("method", "dtype"),
    [("assign_add", "float32"), ("assign_sub", "int64"), ("assign", "int64")],
)
def test_what_may_be_a_sum_or_a_mean_is_refused(
    value_of: Any, method: str, dtype: str
) -> None:
    with pytest.raises(
        errors.UnsupportedError,
        match=rf"'variable:?0?'? by {method}.*aggregation.*add_weight",
    ):
        _rule(value_of, method, dtype, trainable=False)


def test_random_values_differ_between_workers() -> None:
    assert _rule(_random) == "mean"


def test_random_values_of_the_same_seed_do_too() -> None:
    """Workers draw from copies of a seed, each from its own."""
    assert _rule(_random_of_own_seed) == "mean"

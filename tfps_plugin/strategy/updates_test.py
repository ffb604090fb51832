import logging
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.strategy import update_parts
from tfps_plugin.strategy import updates
from tfps_plugin.variables import testing

_TABLE = np.random.default_rng(0).normal(size=(11, 3)).astype("float32")
_GRADIENT = np.random.default_rng(1).normal(size=(11, 3)).astype("float32")
_OTHER = np.random.default_rng(2).normal(size=(11, 3)).astype("float32")


def _momentum(variable: Any, gradient: Any, rate: Any, slot: Any) -> None:
    """An optimizer's update: reads, assigns and adds, dense or not."""
    slot.assign(0.9 * slot + gradient)
    variable.assign_sub(rate * slot)


def _plain_after(gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    slot = 0.9 * _OTHER + gradient
    return _TABLE - 0.5 * slot, slot


@pytest.mark.parametrize("num_shards", [1, 2, 3, 11])
def test_a_dense_update_runs_once_for_each_shard(num_shards: int) -> None:
    table = testing.sharded_variable(_TABLE, num_shards)
    slot = testing.sharded_variable(_OTHER, num_shards)
    table.join_family(slot)
    seen = []

    def fn(variable: Any, gradient: Any, rate: Any) -> None:
        seen.append(tuple(variable.shape))
        _momentum(variable, gradient, rate, slot)

    updates.update(table, fn, (tf.constant(_GRADIENT), 0.5), {})
    expected, expected_slot = _plain_after(_GRADIENT)
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(slot.numpy(), expected_slot, rtol=1e-6)
    assert seen == [(len(table.layout.rows(i)), 3) for i in range(num_shards)]


def test_an_eager_update_sees_the_rows_too() -> None:
    table = testing.remote_variable(_TABLE)
    slot = testing.remote_variable(_OTHER)
    table.join_family(slot)

    def fn(variable: Any, gradient: Any, rate: Any) -> None:
        slot.assign(tf.add(tf.multiply(slot, 0.9), gradient))
        variable.assign_sub(tf.multiply(slot, rate))

    gradient = tf.IndexedSlices(tf.constant(_GRADIENT[:2]), tf.constant([5, 3]))
    updates.update(table, fn, (gradient, 0.5), {})
    expected = _TABLE.copy()
    expected[[5, 3]] -= 0.5 * (0.9 * _OTHER[[5, 3]] + _GRADIENT[:2])
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-6)


def test_autograph_has_nothing_to_warn_of() -> None:
    table = testing.sharded_variable(_TABLE, 2)
    warnings: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = warnings.append  # type: ignore[assignment,method-assign]

    @tf.function
    def step() -> None:
        gradient = tf.constant(_GRADIENT)
        parts = update_parts.parts_of(table, (gradient,), exact=False)
        updates.run_parts(parts, lambda part: part.variable.assign(*part.args))

    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    try:
        step()
    finally:
        logger.removeHandler(handler)
    np.testing.assert_array_equal(table.numpy(), _GRADIENT)
    assert not warnings


@pytest.mark.parametrize("num_shards", [0, 1, 2, 3, 11])
def test_a_sparse_update_touches_the_rows_of_the_gradient_alone(
    num_shards: int,
) -> None:
    """With 0 shards: a whole variable."""
    if num_shards:
        table = testing.sharded_variable(_TABLE, num_shards)
        slot = testing.sharded_variable(_OTHER, num_shards)
    else:
        table = testing.remote_variable(_TABLE)
        slot = testing.remote_variable(_OTHER)
    table.join_family(slot)
    ids = [7, 2, 7, 0]
    values = _GRADIENT[:4]
    gradient = tf.IndexedSlices(tf.constant(values), tf.constant(ids))

    @tf.function
    def step() -> None:
        updates.update(
            table,
            lambda v, g, rate: _momentum(v, g, rate, slot),
            (gradient, 0.5),
            {},
        )

    step()
    summed = np.zeros_like(_TABLE)
    np.add.at(summed, ids, values)
    expected, expected_slot = _plain_after(summed)
    touched = sorted(set(ids))
    for actual, after, before in (
        (table.numpy(), expected, _TABLE),
        (slot.numpy(), expected_slot, _OTHER),
    ):
        want = before.copy()
        want[touched] = after[touched]
        np.testing.assert_allclose(actual, want, rtol=1e-6)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_another_table_as_an_argument_is_seen_shard_by_shard(
    num_shards: int,
) -> None:
    table = testing.sharded_variable(_TABLE, num_shards)
    average = testing.sharded_variable(_OTHER, num_shards)
    updates.update(table, lambda v, a: v.assign(a), (average,), {})
    np.testing.assert_array_equal(table.numpy(), _OTHER)


def test_sparse_and_whole_arguments_do_not_mix() -> None:
    table = testing.sharded_variable(_TABLE, 2)
    gradient = tf.IndexedSlices(tf.ones([1, 3]), tf.constant([0]))
    with pytest.raises(errors.UnsupportedError, match="convert_to_tensor"):
        updates.update(
            table,
            lambda v, g, x: None,
            (gradient, tf.constant(_OTHER)),
            {},
        )


def test_other_variables_are_updated_where_they_are() -> None:
    variable = tf.Variable([1.0, 2.0])
    updates.update(variable, lambda v, d: v.assign_add(d), (tf.ones(2),), {})
    assert variable.numpy().tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    "optimizer",
    ["SGD", "Adagrad", "Adam", "AdamW", "RMSprop", "Adadelta", "Nadam", "Ftrl"],
)
def test_keras_optimizers_update_rows_as_they_update_variables(
    optimizer: str,
) -> None:
    """Lazy and dense updates are equal if every row is touched once."""
    plain = keras.Variable(_TABLE)
    with tf.variable_creator_scope(
        lambda next_creator, **_: testing.sharded_variable(_TABLE, 3)
    ):
        sharded = keras.Variable(_TABLE)
    make = getattr(keras.optimizers, optimizer)
    expected, actual = make(0.1), make(0.1)
    expected.build([plain])

    def slots(next_creator: Any, initial_value: Any, **kwargs: Any) -> Any:
        if not callable(initial_value):
            return next_creator(initial_value=initial_value, **kwargs)
        value = initial_value()
        slot = testing.sharded_variable(value, 3)
        sharded.value.join_family(slot)
        return slot

    with tf.variable_creator_scope(slots):
        actual.build([sharded])
    order = np.random.default_rng(3).permutation(11)
    gradient = tf.IndexedSlices(
        tf.constant(_GRADIENT[order]), tf.constant(order)
    )
    for _ in range(3):
        expected.update_step(tf.constant(_GRADIENT), plain, tf.constant(0.1))
        updates.update(
            sharded.value,
            lambda v, g, rate: actual.update_step(g, v, rate),
            (gradient, tf.constant(0.1)),
            {},
        )
    np.testing.assert_allclose(
        sharded.numpy(), plain.numpy(), rtol=1e-5, atol=1e-6
    )


def test_rows_may_be_read_in_the_branches_of_a_condition() -> None:
    table = testing.sharded_variable(_TABLE, 2)
    slot = testing.sharded_variable(_OTHER, 2)
    table.join_family(slot)

    def fn(variable: Any, gradient: Any, is_warm: Any) -> None:
        # As in RAdam, the kind of update depends on the step.
        delta = tf.cond(
            is_warm,
            lambda: tf.convert_to_tensor(slot) * 2.0,
            lambda: tf.convert_to_tensor(slot) + gradient,
        )
        variable.assign_sub(delta + tf.convert_to_tensor(slot))

    @tf.function
    def step(is_warm: tf.Tensor) -> None:
        gradient = tf.IndexedSlices(
            tf.constant(_GRADIENT[:2]), tf.constant([5, 3])
        )
        updates.update(table, fn, (gradient, is_warm), {})

    step(tf.constant(False))
    expected = _TABLE.copy()
    expected[[5, 3]] -= 2 * _OTHER[[5, 3]] + _GRADIENT[:2]
    np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5)

"""Tests of the functions that find rows."""

import gc
import logging
import uuid
import weakref
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.variables.dynamic.find_functions import FindFunctions
from tfps_plugin.variables.dynamic.initial_rows import InitialRows
from tfps_plugin.variables.dynamic.policies import Eviction
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard.found import Asker
from tfps_plugin.variables.dynamic.shard.rules import Rules
from tfps_plugin.variables.dynamic.shard.shard_directory import ShardDirectory
from tfps_plugin.variables.dynamic.shard.shard_parts import ShardParts

_CPU = "/device:CPU:0"
_IDS = tf.constant([1, 2, 3], tf.int64)


def test_all_steps_have_one_trace() -> None:
    layer = tfps.layers.DynamicEmbedding(4, capacity=100)
    layer.build()
    real = ShardDirectory.find
    with mock.patch.object(
        ShardDirectory, "find", autospec=True, side_effect=real
    ) as find:
        for _ in range(3):

            @tf.function(autograph=False)
            def step() -> tf.Tensor:
                # As `steps_per_execution` does it.
                rows = [layer(_IDS, training=True) for _ in range(4)]
                return tf.add_n(rows)

            step()
    assert find.call_count == 1


def test_only_lookups_that_run_are_traced() -> None:
    embedding = tfps.layers.DynamicEmbedding(4, capacity=100)
    model = keras.Sequential([keras.Input((), dtype="int64"), embedding])
    model.compile("sgd", "mse")
    real = ShardDirectory.find
    with mock.patch.object(
        ShardDirectory, "find", autospec=True, side_effect=real
    ) as find:
        # Keras first asks for the shapes, as if it predicted.
        model.fit(_IDS, tf.zeros([3, 4]), verbose=0)
    assert [call.args[2] for call in find.call_args_list] == [Asker.STEP]


def test_a_function_that_is_traced_for_its_shape_looks_rows_up() -> None:
    table = tfps.layers.DynamicEmbedding(4, "ones", capacity=100)
    table.build()
    look_up = tf.function(lambda ids: table(ids, training=False))

    class Wrapper(keras.layers.Layer):
        def call(self, ids: tf.Tensor) -> tf.Tensor:
            return look_up(ids)

    inputs = keras.Input((), dtype="int64")
    model = keras.Model(inputs, Wrapper()(inputs))
    np.testing.assert_array_equal(
        model.predict(_IDS, verbose=0), np.ones([3, 4])
    )


def test_many_tables_are_no_retracing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # TensorFlow's logger does not propagate.
    logger = logging.getLogger("tensorflow")
    logger.addHandler(caplog.handler)
    try:
        for _ in range(7):
            layer = tfps.layers.DynamicEmbedding(4, capacity=100)
            layer(_IDS, training=True)
            layer(_IDS)
    finally:
        logger.removeHandler(caplog.handler)
    assert not [r for r in caplog.records if "retracing" in r.getMessage()]


def test_slots_that_are_made_later_are_cleared() -> None:
    space = RowSpace.for_capacity(100)
    rules = Rules(
        ("items",),
        space,
        InitialRows("constant", (2.0, 2.0), 0, 3, tf.float32),
        None,
        Eviction(unseen_steps=2),
    )
    name = uuid.uuid4().hex
    numbers = range(space.num_rows)
    rows, slot = (tf.Variable(tf.zeros([len(numbers), 3])) for _ in range(2))
    records, usage = (
        tf.Variable(tf.zeros([len(numbers), columns], tf.int64))
        for columns in (2, 1)
    )
    given: dict[str, Any] = {"parts": ShardParts(rows, records, usage)}
    functions = FindFunctions(
        lambda rows, parts: ShardDirectory(name, rows, parts, rules),
        lambda: [given["parts"]],
        num_tables=1,
        clears_slots=True,
    )

    def step(ids: tf.Tensor) -> np.ndarray:
        found = functions.find(numbers, given["parts"], _CPU, ids, Asker.STEP)
        numbers_found: np.ndarray = found.rows_N.numpy()
        return numbers_found

    first = step(_IDS)
    given["parts"] = ShardParts(rows, records, usage, slots=(slot,))
    for row in first:
        slot[row].assign(tf.fill([3], 7.0))
    for _ in range(4):
        step(_IDS[:0])
    # Their rows are too old, and begin anew.
    again = step(_IDS)
    np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(slot.numpy()[again], np.zeros((3, 3)))
    # Another optimizer takes the place of this one.
    reference = weakref.ref(slot)
    given["parts"] = ShardParts(rows, records, usage)
    del slot
    gc.collect()
    assert reference() is None
    np.testing.assert_array_equal(step(_IDS), first)

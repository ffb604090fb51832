"""Tests of batches that loops take ahead."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin._compat.graph.tensorflow_inputs import NoneTensorSpec
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.strategy.replicas.device_copies import CopiedBatch
from tfps_plugin.strategy.replicas.device_copies import DeviceCopies
from tfps_plugin.training.steps.traced import batches_ahead
from tfps_plugin.training.steps.traced.batches_ahead import GroupBatches

_CPU = "/device:CPU:0"


def _sums_over_iterator(devices: list[str]) -> Any:
    """Returns a function that adds up as many batches as it is told."""

    @tf.function
    def steps(iterator: Any, num_steps: tf.Tensor) -> Any:
        copies = DeviceCopies(iterator.element_spec, devices)
        first = batches_ahead.of_iterator(num_steps > 0, iterator, copies)

        def body(done: tf.Tensor, total: tf.Tensor, now: Any) -> Any:
            taken = now.take()
            if devices:
                assert isinstance(taken, CopiedBatch)
                taken = taken.shares(len(devices))
            done += 1
            following = batches_ahead.of_iterator(
                done < num_steps, iterator, copies
            )
            return done, total + tf.reduce_sum(taken), following

        done, total, _ = tf.while_loop(
            lambda done, total, now: (done < num_steps) & now.is_there(),
            body,
            (tf.constant(0), tf.constant(0.0), first),
            shape_invariants=(
                tf.TensorShape([]),
                tf.TensorShape([]),
                batches_ahead.invariants(first),
            ),
            parallel_iterations=1,
        )
        return done, total

    return steps


@pytest.mark.parametrize("devices", [[], [_CPU]])
def test_a_call_takes_only_what_it_needs(devices: list[str]) -> None:
    steps = _sums_over_iterator(devices)
    data = tf.data.Dataset.range(1, 8, output_type=tf.float32)
    iterator = iter(data.batch(2))
    assert [int(x) for x in steps(iterator, tf.constant(0))] == [0, 0]
    assert [int(x) for x in steps(iterator, tf.constant(2))] == [2, 10]
    np.testing.assert_array_equal(next(iterator), [5.0, 6.0])
    # The last batch is smaller, and then there is none.
    assert [int(x) for x in steps(iterator, tf.constant(3))] == [1, 7]


@pytest.mark.parametrize("devices", [[], [_CPU]])
def test_batches_of_a_group_come_in_order(devices: list[str]) -> None:
    codec = BatchCodec((tf.TensorSpec([None, 1]), NoneTensorSpec()))
    group = GroupBatches(codec, DeviceCopies(codec.decoded_spec, devices))

    @tf.function(input_signature=[tf.TensorSpec([None, 1], tf.string)])
    def all_batches(group_KC: tf.Tensor) -> Any:
        now = group.ahead(group_KC, 0)
        found = []
        for number in range(3):
            taken = group.take(group_KC, tf.constant(number), now)
            if devices:
                taken = taken.shares(1)
            found.append(taken[0])
            assert taken[1] is None
            now = group.ahead(group_KC, number + 1)
        return found, now.is_there() if devices else tf.constant(False)

    batches = [tf.fill([number, 1], float(number)) for number in range(1, 4)]
    encoded = tf.stack([codec.encode_one((each, None)) for each in batches])
    found, is_there = all_batches(encoded)
    for mine, theirs in zip(found, batches, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not is_there


def test_optionals_stay_on_the_cpu() -> None:
    """An accelerator that held one would have copied the ids, too."""
    data = tf.data.Dataset.from_tensors((tf.ones([2]), tf.constant([1, 2])))

    @tf.function
    def take(iterator: Any) -> Any:
        copies = DeviceCopies(iterator.element_spec, ["/device:GPU:0"])
        now = batches_ahead.of_iterator(tf.constant(True), iterator, copies)
        return now.is_there(), now.take().shares(1)

    graph = take.get_concrete_function(
        tf.data.IteratorSpec(data.element_spec)
    ).graph
    handles = {
        operation
        for operation in tensorflow_graphs.operations_within(graph)
        for tensor in [*operation.inputs, *operation.outputs]
        if tensor.dtype == tf.variant
        # What reads an iterator is where the iterator is.
        and operation.type
        not in ("Placeholder", "Identity", "IteratorGetNextAsOptional")
    }
    assert {operation.type for operation in handles} >= {
        "If",
        "OptionalHasValue",
        "OptionalGetValue",
    }
    assert {operation.device for operation in handles} == {_CPU}
    copied = [
        operation
        for operation in tensorflow_graphs.operations_within(graph)
        if operation.device == "/device:GPU:0"
    ]
    assert [operation.outputs[0].dtype for operation in copied] == [tf.float32]

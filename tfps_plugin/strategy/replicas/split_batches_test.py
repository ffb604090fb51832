"""Tests of batches that are split over replicas."""

from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin import errors
from tfps_plugin.strategy.replicas import per_replica
from tfps_plugin.strategy.replicas import split_batches


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.integers(0, 11), st.integers(2, 5))
def test_shares_are_the_batch_in_its_order(
    num_examples: int, num_replicas: int
) -> None:
    rows = tf.reshape(tf.range(2 * num_examples), [num_examples, 2])
    split = split_batches.split({"rows": rows}, num_replicas)["rows"]
    sizes = [int(number) for number in split.num_examples]
    assert sum(sizes) == num_examples
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    parts = [
        value[:size].numpy()
        for value, size in zip(split.values, sizes, strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    np.testing.assert_array_equal(split_batches.whole(split), rows)


def test_a_replica_without_examples_gets_those_of_another() -> None:
    split = split_batches.split(tf.constant([[7, 8]]), 3)
    assert [value.numpy().tolist() for value in split.values] == [[[7, 8]]] * 3
    assert [int(number) for number in split.num_examples] == [1, 0, 0]
    assert split_batches.whole(split).numpy().tolist() == [[7, 8]]


def test_ragged_and_sparse_parts_are_split_and_scalars_are_for_all() -> None:
    batch = {
        "ragged": tf.ragged.constant([[1], [2, 3], []]),
        "sparse": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]]),
        "scalar": tf.constant(5),
        "none": None,
    }
    split = split_batches.split(batch, 2)
    first, second = (per_replica.of_replica(split, i, 2) for i in range(2))
    assert first["ragged"].to_list() == [[1], [2, 3]]
    assert second["ragged"].to_list() == [[]]
    assert tf.sparse.to_dense(first["sparse"]).numpy().tolist() == [
        [1, 0],
        [0, 2],
    ]
    assert tf.sparse.to_dense(second["sparse"]).numpy().tolist() == [[3, 0]]
    assert first["scalar"] is second["scalar"] is batch["scalar"]
    assert first["none"] is None
    joined = split_batches.whole(split)
    assert joined["ragged"].to_list() == batch["ragged"].to_list()
    assert (
        tf.sparse.to_dense(joined["sparse"]).numpy()
        == tf.sparse.to_dense(batch["sparse"]).numpy()
    ).all()


def test_a_batch_of_scalars_is_for_all() -> None:
    batch = (tf.constant(1), None)
    assert split_batches.split(batch, 2) is batch


def test_parts_of_known_different_sizes_are_refused() -> None:
    with pytest.raises(errors.InputError, match=r"parts of \[2, 3\] rows"):
        split_batches.split((tf.zeros([2, 1]), tf.zeros([3])), 2)


def test_parts_of_different_sizes_are_refused_when_they_are_seen() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None])] * 2)
    def step(x: tf.Tensor, y: tf.Tensor) -> Any:
        return split_batches.split((x, y), 2)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match="different numbers of rows"
    ):
        step(tf.zeros([2]), tf.zeros([3]))

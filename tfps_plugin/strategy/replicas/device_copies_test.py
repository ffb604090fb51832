"""Tests of copies of batches on devices."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.strategy.replicas import split_batches
from tfps_plugin.strategy.replicas.device_copies import CopiedBatch
from tfps_plugin.strategy.replicas.device_copies import DeviceCopies

_CPU = "/device:CPU:0"


def _batch(num_examples: int) -> dict[str, Any]:
    rows = tf.range(num_examples, dtype=tf.float32)
    return {
        "a": tf.stack([rows, rows], 1),
        "half": tf.cast(rows, tf.float16),
        "ids": tf.range(num_examples),
        "ragged": tf.RaggedTensor.from_row_splits(
            rows, tf.range(num_examples + 1)
        ),
        "scalar": tf.constant(2.0),
        "sparse": tf.sparse.from_dense(rows[:, None] + 1.0),
        "words": tf.fill([num_examples], "word"),
    }


def _spec(batch: Any) -> Any:
    """Returns the type of a batch with any number of examples."""

    def of(part: Any) -> Any:
        if isinstance(part, tf.Tensor) and part.shape.rank:
            return tf.TensorSpec([None, *part.shape[1:]], part.dtype)
        return tf.type_spec_from_value(part)

    return tf.nest.map_structure(of, batch)


def test_dense_floats_are_copied() -> None:
    batch = _batch(3)
    copies = DeviceCopies(_spec(batch), [_CPU])
    copied = copies.of(batch)
    assert isinstance(copied, CopiedBatch)
    assert [*copied.copies] == [0, 1]
    assert tf.nest.map_structure(
        lambda spec, copy: spec.is_compatible_with(copy),
        copies.specs,
        copied.copies,
    ) == {0: [True], 1: [True]}


def test_parts_that_are_none_stay_as_they_are() -> None:
    copies = DeviceCopies((None, tf.TensorSpec([None, 1])), [_CPU])
    _, y = copies.of((None, tf.ones([2, 1]))).shares(1)
    np.testing.assert_array_equal(y, np.ones([2, 1]))


@pytest.mark.parametrize(
    ("spec", "devices"),
    [(tf.TensorSpec([None, 1]), []), (tf.TensorSpec([None], tf.int64), [_CPU])],
)
def test_without_anything_to_copy_a_batch_is_as_it_was(
    spec: tf.TensorSpec, devices: list[str]
) -> None:
    copies = DeviceCopies(spec, devices)
    batch = tf.zeros([2] * spec.shape.rank, spec.dtype)
    assert not copies.are_made
    assert copies.step_spec is spec
    assert copies.of(batch) is batch
    assert copies.specs == {}


@pytest.mark.parametrize("num_examples", [1, 5])
@pytest.mark.parametrize("num_replicas", [1, 2, 3])
def test_shares_are_those_of_the_batch(
    num_replicas: int, num_examples: int
) -> None:
    batch = _batch(num_examples)
    copies = DeviceCopies(_spec(batch), [_CPU] * num_replicas)
    shares = copies.of(batch).shares(num_replicas)
    expected = batch
    if num_replicas > 1:
        expected = split_batches.split(batch, num_replicas)
    tf.nest.assert_same_structure(shares, expected)
    for mine, theirs in zip(
        tf.nest.flatten(shares, expand_composites=True),
        tf.nest.flatten(expected, expand_composites=True),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_what_is_not_there_has_copies_of_no_rows() -> None:
    batch = _batch(3)
    copies = DeviceCopies(_spec(batch), [_CPU] * 2)
    nothing = copies.of_optional(tf.experimental.Optional.empty(_spec(batch)))
    for position, spec in copies.specs.items():
        for copy, one in zip(nothing[position], spec, strict=True):
            assert copy.shape == [0, *one.shape[1:]]
            assert copy.dtype == one.dtype

"""Tests that the shares of a batch are the batch."""

from typing import Any

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin import errors
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.inputs.batch_cutter import BatchCutter


def _codec() -> BatchCodec:
    dataset = tf.data.Dataset.from_tensors(_batch([1, 0])[0])
    return BatchCodec(dataset.element_spec).of_any_size()


def _batch(lengths: list[int]) -> tuple[Any, list[np.ndarray]]:
    """Returns a batch, and its parts as arrays.

    Args:
        lengths: The length of the ragged row of each example.
    """
    size = len(lengths)
    dense = np.arange(2 * size, dtype="float32").reshape(size, 2)
    sparse = np.arange(3 * size, dtype="int32").reshape(size, 3) % 4
    names = np.array([f"example {n}" for n in range(size)], dtype=object)
    ragged = tf.RaggedTensor.from_row_lengths(
        np.arange(sum(lengths), dtype="int64"), lengths
    )
    features = {
        "dense": tf.constant(dense),
        "ragged": ragged,
        "sparse": tf.sparse.from_dense(sparse),
        "scalar": tf.constant(5.0),
        "nothing": None,
    }
    rows = ragged.to_tensor(-1, shape=[None, 4]).numpy()
    return (features, tf.constant(names)), [dense, rows, sparse, names]


def _as_arrays(batch: Any) -> list[np.ndarray]:
    features, names = batch
    assert features["scalar"] == 5.0
    assert features["nothing"] is None
    return [
        features["dense"].numpy(),
        features["ragged"].to_tensor(-1, shape=[None, 4]).numpy(),
        tf.sparse.to_dense(features["sparse"]).numpy(),
        names.numpy().astype(str).astype(object),
    ]


_CODEC = _codec()
_CUTTER = BatchCutter(_CODEC)


@hypothesis.given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 5)
)
def test_the_shares_behind_each_other_are_the_batch(
    lengths: list[int], num_shares: int
) -> None:
    num_shares = min(num_shares, len(lengths))
    batch, expected = _batch(lengths)
    parts_C = _CODEC.encode_one(batch)
    assert _CUTTER.num_examples(parts_C) == len(lengths)
    shares = _CUTTER.cut(parts_C, num_shares)
    assert shares.shape == (num_shares, _CODEC.num_parts)
    decoded = [_as_arrays(_CODEC.decode(share)) for share in shares]
    sizes = [len(parts[0]) for parts in decoded]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    for parts, whole in zip(zip(*decoded, strict=True), expected, strict=True):
        assert [len(part) for part in parts] == sizes
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_the_first_part_that_is_no_scalar_has_the_examples() -> None:
    element = (tf.constant(1.0), tf.zeros([4, 2]))
    codec = BatchCodec(
        tf.nest.map_structure(tf.TensorSpec.from_tensor, element)
    ).of_any_size()
    assert BatchCutter(codec).num_examples(codec.encode_one(element)) == 4


def test_parts_of_different_numbers_of_rows_are_refused() -> None:
    element = {
        "x": tf.zeros([4, 2]),
        "rate": tf.constant(1.0),
        "sparse": tf.sparse.from_dense(tf.ones([4, 1])),
        "table": tf.zeros([3, 2]),
    }
    dataset = tf.data.Dataset.from_tensors(element)
    codec = BatchCodec(dataset.element_spec).of_any_size()
    with pytest.raises(
        errors.InputError,
        match=r"one row for each example.*parts of \[3, 4\] rows.*Creator",
    ):
        BatchCutter(codec).num_examples(codec.encode_one(element))


def test_a_batch_of_scalars_is_one_example() -> None:
    element = {"rate": tf.constant(1.0)}
    codec = BatchCodec(
        tf.nest.map_structure(tf.TensorSpec.from_tensor, element)
    ).of_any_size()
    cutter = BatchCutter(codec)
    parts_C = codec.encode_one(element)
    assert cutter.num_examples(parts_C) == 1
    assert cutter.cut(parts_C, 1).shape == (1, 1)


def test_another_number_of_shares_is_not_traced_anew() -> None:
    cutter = BatchCutter(_CODEC)
    for size, num_shares in [(4, 2), (5, 3), (6, 2), (6, 5)]:
        cutter.cut(_CODEC.encode_one(_batch([1] * size)[0]), num_shares)
    assert cutter._cut.experimental_get_tracing_count() == 1

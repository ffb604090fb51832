"""Batches come back from strings as they were."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.inputs.batch_codec import BatchCodec

_DATASETS: dict[str, Any] = {
    "dense": tf.data.Dataset.range(10).batch(4),
    "pairs": tf.data.Dataset.from_tensor_slices(
        (np.ones((5, 3), "float32"), np.arange(5))
    ).batch(2),
    "one in a tuple": tf.data.Dataset.from_tensor_slices(
        (np.arange(5, dtype="int8"),)
    ).batch(2),
    "nested": tf.data.Dataset.from_tensor_slices(
        ({"a": ["x", "y", "z"], "b": [True, False, True]}, [[1.0], [2.0], [3]])
    ).batch(2),
    "ragged": tf.data.Dataset.from_tensor_slices(
        {"r": tf.ragged.constant([[[1, 2], []], [], [[3]]]), "d": [1, 2, 3]}
    ).batch(2),
    "sparse": tf.data.Dataset.from_tensor_slices(
        (tf.sparse.from_dense([[0, 1], [2, 0], [0, 0]]), tf.zeros([3]))
    ).batch(2),
    "bfloat16": tf.data.Dataset.from_tensors(
        tf.constant([1.5, 2.5], tf.bfloat16)
    ),
}


def _as_arrays(structure: Any) -> list[Any]:
    return [
        part.numpy()
        for part in tf.nest.flatten(structure, expand_composites=True)
    ]


@pytest.mark.parametrize("name", _DATASETS)
def test_there_and_back(name: str) -> None:
    dataset = _DATASETS[name]
    codec = BatchCodec(dataset.element_spec)
    decode = tf.function(codec.decode)
    found = [decode(parts_C) for parts_C in codec.encoded(dataset)]
    expected = list(dataset)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        tf.nest.assert_same_structure(mine, theirs, expand_composites=True)
        for a, b in zip(_as_arrays(mine), _as_arrays(theirs), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_static_shapes_are_known_in_a_function() -> None:
    spec = (
        tf.TensorSpec([None, 3], tf.float32),
        tf.RaggedTensorSpec([None, None, 2], tf.int64, ragged_rank=1),
    )

    @tf.function
    def decode(parts_C: tf.Tensor) -> None:
        dense, ragged = BatchCodec(spec).decode(parts_C)
        assert dense.shape.as_list() == [None, 3]
        assert ragged.shape.as_list() == [None, None, 2]

    decode.get_concrete_function(tf.TensorSpec([None], tf.string))


def test_what_keras_puts_for_none_is_none() -> None:
    dataset = tf.data.Dataset.from_tensors((tf.zeros([2, 1]), [1, 2])).map(
        lambda x, y: (x, tf.experimental.Optional.empty(None), y)
    )
    codec = BatchCodec(dataset.element_spec)
    (parts_C,) = codec.encoded(dataset)
    x, nothing, y = codec.decode(parts_C)
    assert nothing is None
    assert x.shape == (2, 1)
    np.testing.assert_array_equal(y, [1, 2])


def test_what_is_not_there_stays_so() -> None:
    dataset = tf.data.Dataset.from_tensors((tf.zeros([2, 1]), None))
    codec = BatchCodec(dataset.element_spec)
    (parts_C,) = codec.encoded(dataset)
    assert codec.decode(parts_C)[1] is None
    assert codec.decoded_spec[1] is None


@pytest.mark.parametrize("name", _DATASETS)
def test_batches_of_any_size_have_the_same_strings(name: str) -> None:
    dataset = _DATASETS[name]
    codec = BatchCodec(dataset.element_spec)
    of_any_size = codec.of_any_size()
    for element in dataset:
        parts_C = codec.encode_one(element)
        np.testing.assert_array_equal(parts_C, of_any_size.encode_one(element))
        tf.nest.assert_same_structure(
            codec.decode(parts_C),
            of_any_size.decode(parts_C),
            expand_composites=True,
        )


def test_only_the_number_of_examples_becomes_any() -> None:
    spec = {
        "dense": tf.TensorSpec([4, 3], tf.float32),
        "ragged": tf.RaggedTensorSpec(
            [4, None, 2], tf.int64, ragged_rank=1, row_splits_dtype=tf.int32
        ),
        "sparse": tf.SparseTensorSpec([4, 5], tf.int8),
        "scalar": tf.TensorSpec([], tf.int64),
    }
    assert BatchCodec(spec).of_any_size().element_spec == {
        "dense": tf.TensorSpec([None, 3], tf.float32),
        "ragged": tf.RaggedTensorSpec(
            [None, None, 2], tf.int64, ragged_rank=1, row_splits_dtype=tf.int32
        ),
        "sparse": tf.SparseTensorSpec([None, 5], tf.int8),
        "scalar": tf.TensorSpec([], tf.int64),
    }


def test_another_number_of_examples_decodes_if_any_may() -> None:
    codec = BatchCodec(tf.TensorSpec([4, 3], tf.float32))
    parts_C = codec.encode_one(tf.ones([2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        codec.decode(parts_C)
    assert codec.of_any_size().decode(parts_C).shape == (2, 3)

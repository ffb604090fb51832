"""Tests of packing many tensors into few."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.transport import packing
from tfps_plugin.transport import row_packing
from tfps_plugin.transport.packing import Packing

_DTYPES = [tf.float32, tf.int32, tf.int64, tf.bool, tf.string, tf.bfloat16]


@st.composite
def _rows(draw: st.DrawFn) -> list[tuple[tf.TensorSpec, np.ndarray]]:
    """Draws rows of tables, mostly of one width, and other tensors."""
    # With a width of 16, even a single table travels as rows.
    width = draw(st.sampled_from([1, 2, 3, 5, 16]))
    made = draw(_tensors())[: draw(st.integers(0, 3))]
    for number in range(draw(st.integers(1, 5))):
        num_rows = draw(st.integers(0, 4))
        value = np.arange(num_rows * width) + 1000.0 * number
        value = value.reshape(num_rows, width).astype(np.float32)
        known = num_rows if draw(st.integers(0, 3)) == 0 else None
        made.append((tf.TensorSpec([known, width], tf.float32), value))
    return draw(st.permutations(made))


@st.composite
def _tensors(draw: st.DrawFn) -> list[tuple[tf.TensorSpec, np.ndarray]]:
    """Draws tensors, each with its spec at the time of tracing."""
    dtypes = draw(
        st.lists(st.sampled_from(_DTYPES), min_size=1, max_size=3, unique=True)
    )
    made = []
    for number in range(draw(st.integers(2, 7))):
        dtype = draw(st.sampled_from(dtypes))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        known = [size if draw(st.booleans()) else None for size in shape]
        values = np.arange(np.prod(shape, dtype=int)) + 100 * number
        if dtype == tf.string:
            values = values.astype(str).astype(object)
        elif dtype == tf.bool:
            values = values % 3 == 0
        made.append(
            (
                tf.TensorSpec(known, dtype),
                tf.cast(values.reshape(shape), dtype).numpy()
                if dtype != tf.string
                else values.reshape(shape),
            )
        )
    return made


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(st.one_of(_tensors(), _rows(), _rows()))
def test_what_is_unpacked_is_what_was_packed(
    tensors: list[tuple[tf.TensorSpec, np.ndarray]],
) -> None:
    counts = []

    @tf.function(input_signature=[spec for spec, _ in tensors])
    def there_and_back(*given: tf.Tensor) -> list[tf.Tensor]:
        way = row_packing.best(given)
        parcels = way.pack(given)
        counts.append(len(parcels))
        unpacked = way.unpack(parcels)
        for spec, tensor in zip(given, unpacked, strict=True):
            assert tensor.shape.as_list() == spec.shape.as_list()
        return unpacked

    results = there_and_back(
        *[tf.constant(value, spec.dtype) for spec, value in tensors]
    )
    for (spec, value), result in zip(tensors, results, strict=True):
        assert result.dtype == spec.dtype
        np.testing.assert_array_equal(
            result.numpy(), tf.constant(value, spec.dtype).numpy()
        )
    # One parcel for all numbers and the sizes, and one for each other dtype.
    (count,) = counts
    dtypes = {spec.dtype for spec, _ in tensors}
    assert count <= len(dtypes - packing.WORDS) + 1


def _bits(of: np.ndarray) -> list[tf.Tensor]:
    return [
        tf.constant(of.astype(np.uint32).view(np.float32)),
        tf.constant(of.astype(np.int32)),
        tf.constant(of.astype(np.int64) << 32 | of),
        tf.constant((of.astype(np.uint64) << 32 | of).view(np.float64)),
    ]


@pytest.mark.parametrize(
    "bits",
    [
        # As floats, the first are NaNs, and the second are denormal.
        np.arange(0x7F800000, 0x80000000, 0x1001, dtype=np.uint32),
        np.arange(0, 50, dtype=np.uint32),
    ],
)
# Words travel as integers, or as floats if most of them are floats.
@pytest.mark.parametrize("more_floats", [0, 2])
@pytest.mark.parametrize("words", [packing.WORDS, packing.WHOLE_NUMBERS])
def test_bits_are_not_looked_at(
    bits: np.ndarray, more_floats: int, words: frozenset[tf.DType]
) -> None:
    tensors = _bits(bits)
    tensors += tensors[:1] * more_floats

    @tf.function(
        input_signature=[tf.TensorSpec([None], t.dtype) for t in tensors]
    )
    def there_and_back(*given: tf.Tensor) -> list[tf.Tensor]:
        way = Packing(given, words)
        parcels = way.pack(given)
        assert len(parcels) == 1 + len({t.dtype for t in given} - words)
        return way.unpack(parcels)

    for mine, theirs in zip(there_and_back(*tensors), tensors, strict=True):
        assert mine.numpy().tobytes() == theirs.numpy().tobytes()


def test_tensorflow_does_not_compute_words_of_constants() -> None:
    """Otherwise it would flush small integers, as floats, to zero."""
    with tf.Graph().as_default() as graph:
        rows = tf.ones([2, 16])
        table = tf.compat.v1.placeholder(tf.float32, [None, 16])
        numbers = [
            tf.constant([1, 8], dtype)
            for dtype in (tf.int32, tf.int64, tf.bfloat16, tf.uint32)
        ]
        for given in ([table, table], [rows] * 9, [table[:, 3:], table[3:]]):
            given = [*given, *numbers, tf.zeros(tf.shape(table))]
            row_packing.best(given).pack(given)
            Packing(given).pack(given)
    casts = [
        operation
        for operation in graph.get_operations()
        if operation.type == "Bitcast"
        and operation.outputs[0].dtype == tf.float32
    ]
    assert len(casts) > 10
    assert {cast.inputs[0].op.type for cast in casts} == {
        "PlaceholderWithDefault"
    }


def test_every_packable_dtype_can_be_packed() -> None:
    for dtype in packing._PACKABLE:
        if dtype == tf.string:
            tensors = [tf.constant(["a", "b"]), tf.constant([["c"]])]
        else:
            tensors = [
                tf.cast([0, 1], dtype),
                tf.cast([[1, 1, 0]], dtype),
            ]
        way = Packing(tensors)
        parcels = way.pack(tensors)
        assert len(parcels) == 1
        for mine, theirs in zip(way.unpack(parcels), tensors, strict=True):
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_what_cannot_be_packed_is_refused() -> None:
    assert not packing.is_packable(tf.zeros([1 << 18]))
    assert packing.is_packable(tf.zeros([(1 << 18) - 1]))
    mutex = tf.raw_ops.MutexV2(container="", shared_name="packing_test")
    assert not packing.is_packable(mutex)

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin import errors
from tfps_plugin.variables.sharding import partitioners

_shapes = st.lists(st.integers(1, 3000), min_size=1, max_size=3)
_dtypes = st.sampled_from([tf.float32, tf.float16, tf.int64, tf.string])
_theirs = tf.distribute.experimental.partitioners


@given(_shapes, _dtypes, st.integers(1, 20))
def test_fixed_shards_as_tensorflow_does(
    shape: list[int], dtype: tf.DType, shards: int
) -> None:
    _same(
        partitioners.FixedShardsPartitioner(shards),
        _theirs.FixedShardsPartitioner(shards),
        shape,
        dtype,
    )


@given(_shapes, _dtypes, st.integers(1, 1 << 20), st.integers(1, 20))
def test_min_size_as_tensorflow_does(
    shape: list[int], dtype: tf.DType, min_bytes: int, shards: int
) -> None:
    _same(
        partitioners.MinSizePartitioner(min_bytes, shards),
        _theirs.MinSizePartitioner(min_bytes, shards),
        shape,
        dtype,
    )


@given(
    _shapes,
    _dtypes,
    st.integers(1, 1 << 20),
    st.one_of(st.none(), st.integers(1, 20)),
)
def test_max_size_as_tensorflow_does(
    shape: list[int], dtype: tf.DType, max_bytes: int, shards: int | None
) -> None:
    _same(
        partitioners.MaxSizePartitioner(max_bytes, shards),
        _theirs.MaxSizePartitioner(max_bytes, shards),
        shape,
        dtype,
    )


def test_num_shards_takes_any_callable() -> None:
    assert _num_shards(lambda shape, dtype, axis=0: [3, 1], [10, 2]) == 3
    assert _num_shards(lambda **_: (30, 1), [10, 2]) == 10
    assert _num_shards(lambda shape, dtype: [3, 1], [10, 2]) == 3
    assert _num_shards(lambda shape, dtype, axis: [3 + axis, 1], [10, 2]) == 3


def test_scalars_and_empty_variables_are_never_cut() -> None:
    two = partitioners.FixedShardsPartitioner(2)
    assert _num_shards(two, []) == 1
    assert _num_shards(two, [0, 4]) == 1
    assert _num_shards(None, [10, 4]) == 1


def test_another_axis_is_refused() -> None:
    with pytest.raises(errors.PartitioningError) as raised:
        _num_shards(lambda **_: [1, 2], [10, 4])
    for part in ("'table'", "(10, 4)", "[1, 2]", "first axis"):
        assert part in str(raised.value)


@pytest.mark.parametrize("answer", [[2], [0, 1], 3, None, ["a", 1]])
def test_an_answer_that_is_none_is_refused(answer: object) -> None:
    with pytest.raises(errors.PartitioningError, match="one positive number"):
        _num_shards(lambda **_: answer, [10, 4])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_sizes_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(errors.PartitioningError, match="num_shards="):
        partitioners.FixedShardsPartitioner(value)  # type: ignore[arg-type]


def _same(
    ours: partitioners.Partitioner,
    theirs: partitioners.Partitioner,
    shape: list[int],
    dtype: tf.DType,
) -> None:
    shape = tf.TensorShape(shape)
    assert list(ours(shape, dtype)) == list(theirs(shape, dtype))


def _num_shards(
    partitioner: partitioners.Partitioner | None, shape: list[int]
) -> int:
    return partitioners.num_shards(
        partitioner, tf.TensorShape(shape), tf.float32, "table"
    )

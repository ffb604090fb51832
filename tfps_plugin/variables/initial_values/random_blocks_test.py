import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfps_plugin.variables.initial_values import random_blocks
from tfps_plugin.variables.initial_values.random_blocks import RandomBlocks
from tfps_plugin.variables.initial_values.random_blocks import RandomDraw

_WHOLE = {
    "normal": lambda shape, seed, a, b, dtype: tf.random.stateless_normal(
        shape, seed, a, b, dtype
    ),
    "truncated_normal": (
        lambda shape, seed, a, b, dtype: tf.random.stateless_truncated_normal(
            shape, seed, a, b, dtype
        )
    ),
    "uniform": lambda shape, seed, a, b, dtype: tf.random.stateless_uniform(
        shape, seed, tf.cast(a, dtype), tf.cast(b, dtype), dtype
    ),
}


@given(
    distribution=st.sampled_from(sorted(_WHOLE)),
    dtype=st.sampled_from([tf.float32, tf.float64, tf.float16, tf.bfloat16]),
    row_shape=st.sampled_from([(), (1,), (3,), (16,), (5, 7)]),
    seed=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
    bounds=st.lists(st.integers(0, 301), min_size=2, max_size=2).map(sorted),
)
def test_a_block_is_that_of_the_whole(
    distribution: str,
    dtype: tf.DType,
    row_shape: tuple[int, ...],
    seed: tuple[int, int],
    bounds: list[int],
) -> None:
    start, stop = bounds
    draw = RandomDraw(distribution, (-0.3, 0.7), seed)  # type: ignore[arg-type]
    block = RandomBlocks(draw, row_shape, dtype).rows(start, stop)
    whole = _WHOLE[distribution]((301, *row_shape), seed, -0.3, 0.7, dtype)
    np.testing.assert_array_equal(block.numpy(), whole[start:stop].numpy())


@pytest.mark.parametrize(
    ("counter", "counts", "expected"),
    [
        ((5, 7), 0, (5, 7)),
        ((2**64 - 1, 0), 1, (0, 1)),
        ((2**64 - 1, 2**64 - 1), 1, (0, 0)),
        ((0, 3), 2**64 + 2, (2, 4)),
    ],
)
def test_the_counter_carries(
    counter: tuple[int, int], counts: int, expected: tuple[int, int]
) -> None:
    assert random_blocks.advance(counter, counts) == expected

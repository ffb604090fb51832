"""Tests of stacked rows against sums of NumPy."""

from typing import Any

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tfps_plugin.training.synchronous.stacked_rows import StackedRows
from tfps_plugin.training.synchronous.stacked_rows import rows_of_variable
from tfps_plugin.variables.sharding.layout import RowLayout

_NUM_ROWS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def _rows(random: np.random.Generator, number: int) -> np.ndarray:
    """Returns rows of whole numbers, whose sums are exact."""
    return random.integers(-9, 9, [number, 2]).astype("float32")


@hypothesis.given(_NUM_ROWS, st.integers(1, 3), st.data())
def test_sums_are_those_of_each_shard(
    num_rows: list[int], num_workers: int, data: Any
) -> None:
    """As on a ps, which gets the stacks of several workers."""
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    stacked = StackedRows(num_rows)
    expected: list[dict[int, np.ndarray]] = [{} for _ in num_rows]
    stacks = []
    for _ in range(num_workers):
        ids = [
            data.draw(st.lists(st.integers(0, number - 1), max_size=6))
            for number in num_rows
        ]
        rows = [_rows(random, len(mine)) for mine in ids]
        stacks.append(
            stacked.stack(
                [tf.constant(mine, tf.int32) for mine in ids],
                [tf.constant(mine) for mine in rows],
            )
        )
        for sums, mine, values in zip(expected, ids, rows, strict=True):
            for number, value in zip(mine, values, strict=True):
                sums[number] = sums.get(number, 0.0) + value
    assert all(ids_N.dtype == tf.int64 for ids_N, _ in stacks)
    found = stacked.sums(
        tf.concat([ids_N for ids_N, _ in stacks], 0),
        tf.concat([rows_ND for _, rows_ND in stacks], 0),
    )
    assert len(found) == len(num_rows)
    for (ids_U, sums_UD), sums in zip(found, expected, strict=True):
        assert sorted(ids_U.numpy()) == sorted(sums), "an id occurs once"
        for number, value in zip(ids_U.numpy(), sums_UD.numpy(), strict=True):
            np.testing.assert_array_equal(value, sums[number])


@hypothesis.given(_NUM_ROWS, st.data())
def test_rows_of_some_shards_are_rows_of_the_variable(
    num_rows: list[int], data: Any
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    layout = RowLayout((0, *np.cumsum(num_rows).tolist()))
    numbers = data.draw(
        st.sets(st.sampled_from(range(len(num_rows))), min_size=1)
    )
    shards = {
        number: data.draw(
            st.lists(st.integers(0, num_rows[number] - 1), unique=True)
        )
        for number in sorted(numbers)
    }
    given = {
        number: (np.array(ids, "int64"), _rows(random, len(ids)))
        for number, ids in shards.items()
    }
    is_held: list[bool] = []

    @tf.function(autograph=False)
    def step(given: dict[int, Any]) -> Any:
        slices = rows_of_variable(
            layout, tf.TensorShape([sum(num_rows), 2]), given
        )
        local_ids, parts = slices.split_by_shard(layout, 2 * slices.values)
        is_held.extend(part is not None for part in parts)
        types = {
            operation.type
            for operation in tf.compat.v1.get_default_graph().get_operations()
        }
        assert "DynamicPartition" not in types, "they are in order already"
        return slices.indices, slices.dense_shape, local_ids, parts

    ids_U, shape, local_ids, parts = step(
        tf.nest.map_structure(tf.constant, given)
    )
    assert shape.numpy().tolist() == [sum(num_rows), 2]
    assert ids_U.numpy().tolist() == [
        layout.offsets[number] + mine
        for number, ids in shards.items()
        for mine in ids
    ]
    assert is_held == [number in shards for number in range(len(num_rows))]
    for number, (ids, rows) in given.items():
        np.testing.assert_array_equal(local_ids[number], ids)
        np.testing.assert_array_equal(parts[number], 2 * rows)


def test_rows_are_sorted_again_in_another_function() -> None:
    layout = RowLayout((0, 3, 5))

    @tf.function(autograph=False)
    def step() -> Any:
        ids, rows = tf.constant([1, 0], tf.int64), tf.constant([[4.0], [6.0]])
        slices = rows_of_variable(
            layout, tf.TensorShape([5, 1]), {1: (ids, rows)}
        )

        @tf.function(autograph=False)
        def inner() -> Any:
            return slices.split_by_shard(layout, slices.values)

        return inner()

    local_ids, parts = step()
    assert [each.numpy().tolist() for each in local_ids] == [[], [1, 0]]
    np.testing.assert_array_equal(parts[1], [[4.0], [6.0]])

"""Compares rows and gradients with NumPy."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat.keras import set_value
from tfps_plugin.training.embedding import stacked_lookup
from tfps_plugin.training.embedding.stacked_lookup import Request
from tfps_plugin.training.embedding.stacked_lookup import Span
from tfps_plugin.variables import testing

_ROWS = 9
_IDS = {"a": [3, 0, 0], "b": [2, -1, 2], "c": [], "d": [-2, 1]}


def _spans(first_rows: int) -> list[Span]:
    """Makes two tables in each stack, whose first shard has five rows."""
    first, second = range(first_rows), range(first_rows, _ROWS)
    return [
        Span("a", "second", second),
        Span("b", "first", first),
        Span("c", "second", second),
        Span("d", "first", first),
    ]


def _expected_rows(spans: list[Span]) -> list[np.ndarray]:
    return [
        np.array(span.rows)[np.array(_IDS[span.feature], int)] for span in spans
    ]


def _stack(kind: str, value: np.ndarray) -> Any:
    variable = keras.Variable(value)
    if kind == "ours":
        # As the strategy's scope does.
        set_value(variable, testing.sharded_variable(value, 2))
    return variable


# With five, each table is in one shard.
@pytest.mark.sample(cases=4)
@pytest.mark.parametrize("first_rows", [4, 5])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [
        ("ours", "ours", "ours"),
        ("ours", "plain", "ours"),
        ("plain", "ours"),
        ("plain", "plain"),
        ("ours",),
    ],
)
def test_rows_and_gradients_of_several_stacks_are_those_of_numpy(
    kinds: tuple[str, ...], traced: bool, first_rows: int
) -> None:
    spans = _spans(first_rows)
    values = [
        np.random.default_rng(width).normal(size=(_ROWS, width))
        for width in range(2, 2 + len(kinds))
    ]
    stacks = [_stack(*each) for each in zip(kinds, values, strict=True)]

    def look_up() -> Any:
        with tf.GradientTape() as tape:
            rows = stacked_lookup.look_up(
                [
                    Request(
                        stack,
                        spans,
                        [tf.constant(ids, tf.int32) for ids in _IDS.values()],
                    )
                    for stack in stacks
                ]
            )
            loss = [tf.reduce_sum(each**2) for of in rows for each in of]
        found = tape.gradient(loss, [stack.value for stack in stacks])
        return rows, [tf.convert_to_tensor(each) for each in found]

    rows, gradients = (tf.function(look_up) if traced else look_up)()
    for n, value in enumerate(values):
        expected = np.zeros_like(value)
        for found, numbers in zip(rows[n], _expected_rows(spans), strict=True):
            np.testing.assert_allclose(found, value[numbers], rtol=1e-6)
            np.add.at(expected, numbers, 2 * value[numbers])
        np.testing.assert_allclose(gradients[n], expected, rtol=1e-6)


@pytest.mark.parametrize(("first_rows", "are_sorted"), [(4, True), (5, False)])
def test_features_of_one_shard_each_are_not_sorted(
    first_rows: int, are_sorted: bool
) -> None:
    stack = _stack("ours", np.zeros([_ROWS, 2], "float32"))

    @tf.function
    def look_up(ids: list[tf.Tensor]) -> Any:
        request = Request(stack, _spans(first_rows), ids)
        return stacked_lookup.look_up([request])

    spec = tf.TensorSpec([None], tf.int32)
    graph = look_up.get_concrete_function([spec] * len(_IDS)).graph
    types = {operation.type for operation in graph.get_operations()}
    assert ("DynamicPartition" in types) == are_sorted


# With each table in one shard, the lookup reorders these features.
@pytest.mark.parametrize("num_tables", [5, 18])
def test_what_features_get_is_in_their_order(
    num_tables: int,
) -> None:
    rows = 2 * num_tables
    value = np.random.default_rng(1).normal(size=(rows, 3)).astype("float32")
    stack = _stack("ours", value)
    tables = np.random.default_rng(2).permutation(num_tables)
    spans = [
        Span(f"feature_{n}", f"table_{table}", range(2 * table, 2 * table + 2))
        for n, table in enumerate(tables)
    ]

    @tf.function
    def look_up(ids: list[tf.Tensor]) -> Any:
        with tf.GradientTape() as tape:
            (found,) = stacked_lookup.look_up([Request(stack, spans, ids)])
            joined_BM = tf.concat(found, -1)
            loss = tf.reduce_sum(joined_BM**2)
        return joined_BM, tape.gradient(loss, stack.value)

    ids_FB = np.random.default_rng(3).integers(-2, 2, (num_tables, 4))
    joined_BM, _ = look_up([tf.constant(ids) for ids in ids_FB])
    numbers_BF = np.transpose(ids_FB % 2 + 2 * tables[:, None])
    np.testing.assert_array_equal(joined_BM, value[numbers_BF].reshape(4, -1))


def _of_a_matrix(
    sizes: list[int], columns: list[int]
) -> tuple[np.ndarray, Any]:
    """Returns the value of a stack, and a function that looks columns up."""
    starts = np.cumsum([0, *sizes])
    value = np.random.default_rng(4).normal(size=(starts[-1], 3))
    stack = _stack("ours", value)
    spans = [
        Span(f"feature_{n}", f"table_{n}", range(*starts[n : n + 2].tolist()))
        for n in range(len(sizes))
    ]

    @tf.function(
        input_signature=[tf.TensorSpec([None, max(columns) + 1], tf.int64)]
    )
    def look_up(ids_BC: tf.Tensor) -> Any:
        ids = [ids_BC[:, column] for column in columns]
        (found,) = stacked_lookup.look_up([Request(stack, spans, ids)])
        return tf.stack(found, 1)

    return value, look_up


@pytest.mark.parametrize("sizes", [[2, 3, 1, 4, 2], [3] * 6])
def test_columns_of_a_matrix_are_looked_up_as_any_features(
    sizes: list[int],
) -> None:
    columns = np.random.default_rng(5).permutation(len(sizes)).tolist()
    value, look_up = _of_a_matrix(sizes, columns)
    starts = np.cumsum([0, *sizes[:-1]])
    for batch in (0, 1, 7):
        ids_BF = np.random.default_rng(batch).integers(
            -np.array(sizes), sizes, (batch, len(sizes))
        )
        ids_BC = np.empty_like(ids_BF)
        ids_BC[:, columns] = ids_BF
        np.testing.assert_array_equal(
            look_up(tf.constant(ids_BC)), value[ids_BF % sizes + starts]
        )
    # No feature is handled by itself; and each table is in one shard, so that
    # nothing is sorted either.
    types = [
        o.type for o in look_up.get_concrete_function().graph.get_operations()
    ]
    assert "ShapeN" not in types
    # If all tables have the same number of rows, that is one number.
    assert types.count("BroadcastTo") == (1 if len(set(sizes)) == 1 else 2)


def test_an_id_outside_of_its_table_is_named_in_a_column_too() -> None:
    _, look_up = _of_a_matrix([2, 3, 1, 4, 2], [4, 0, 1, 3, 2])
    ids_BC = np.zeros([6, 5], "int64")
    # Of the feature that is the column with number 3.
    ids_BC[2, 3] = 4
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        look_up(tf.constant(ids_BC))
    for part in ("[feature_3]", "[table_3]", "ids =] [4]"):
        assert part in str(raised.value).replace('"', "")


@pytest.mark.parametrize("sizes", [[2, 3, 1, 4, 2], [3] * 5])
@pytest.mark.parametrize("id_", [4, -5, 2**63 - 1, -(2**63), 2**63 - 4])
def test_ids_of_any_size_are_outside(sizes: list[int], id_: int) -> None:
    _, look_up = _of_a_matrix(sizes, [0, 1, 2, 3, 4])
    ids_BC = np.zeros([6, 5], "int64")
    ids_BC[:, 3] = -1
    ids_BC[4, 3] = id_
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        look_up(tf.constant(ids_BC))
    for part in ("[feature_3]", f"[{sizes[3]}]", f"ids =] [{id_}]"):
        assert part in str(raised.value).replace('"', "")

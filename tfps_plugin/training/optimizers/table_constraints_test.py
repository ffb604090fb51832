from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.optimizers import table_constraints
from tfps_plugin.variables import testing

_constraints = keras.constraints


class _OfColumns(keras.constraints.Constraint):
    def __call__(self, w: Any) -> Any:
        return w - tf.reduce_mean(w, 0)


class _OfElements(keras.constraints.Constraint):
    row_wise = True

    def __call__(self, w: Any) -> Any:
        return tf.clip_by_value(w, -1, 1)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (None, True),
        (_constraints.NonNeg(), True),
        (_constraints.MaxNorm(2, axis=1), True),
        (_constraints.UnitNorm(axis=-1), True),
        (_constraints.MinMaxNorm(axis=[1]), True),
        (_constraints.MaxNorm(2), False),
        (_constraints.UnitNorm(axis=-2), False),
        (_constraints.MinMaxNorm(axis=[0, 1]), False),
        (_OfColumns(), False),
        (_OfElements(), True),
        (lambda w: w, False),
    ],
)
def test_which_constraints_look_at_single_rows(
    constraint: Any, expected: bool
) -> None:
    assert table_constraints.is_row_wise(constraint, 2) is expected


def _variable(constraint: Any, num_shards: int) -> keras.Variable:
    value = tf.ones((6, 2))
    with tf.variable_creator_scope(
        lambda next_creator, **_: (
            testing.sharded_variable(value, num_shards)
            if num_shards
            else testing.remote_variable(value)
        )
    ):
        variable = keras.Variable(value, name="table")
    variable.constraint = constraint
    return variable


def test_a_whole_variable_may_have_any_constraint() -> None:
    table_constraints.require_row_wise(_variable(_constraints.MaxNorm(), 0))


def test_shards_may_have_constraints_of_rows() -> None:
    table_constraints.require_row_wise(_variable(_constraints.NonNeg(), 2))
    table_constraints.require_row_wise(_variable(_OfElements(), 2))


@pytest.mark.parametrize(
    ("constraint", "shown"),
    [
        (_constraints.MaxNorm(2), r"MaxNorm\(max_value=2, axis=0\)"),
        (_OfColumns(), r"_OfColumns\(\)"),
        (len, "built-in function len"),
    ],
    ids=["MaxNorm", "own", "function"],
)
def test_the_refusal_names_the_constraint_and_the_ways_out(
    constraint: Any, shown: str
) -> None:
    with pytest.raises(errors.UnsupportedError, match=shown) as caught:
        table_constraints.require_row_wise(_variable(constraint, 3))
    for text in ("'table'", "3 shards", "row_wise", "variable_partitioner"):
        assert text in str(caught.value)

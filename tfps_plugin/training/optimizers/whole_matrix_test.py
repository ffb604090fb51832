from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup.table import table_behind

_optimizers = keras.optimizers
_constraints = keras.constraints


def _variable(name: str, num_shards: int) -> keras.Variable:
    value = tf.ones((6, 2))
    with tf.variable_creator_scope(
        lambda next_creator, **_: (
            testing.sharded_variable(value, num_shards)
            if num_shards
            else testing.remote_variable(value)
        )
    ):
        return keras.Variable(value, name=name)


@pytest.mark.parametrize(
    "optimizer",
    [
        _optimizers.SGD(),
        _optimizers.RMSprop(),
        _optimizers.Adam(),
        _optimizers.AdamW(),
        _optimizers.Adadelta(),
        _optimizers.Adagrad(),
        _optimizers.Adamax(),
        _optimizers.Nadam(),
        _optimizers.Ftrl(),
        _optimizers.Lion(),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_most_optimizers_update_shards(optimizer: Any) -> None:
    table = _variable("table", 2)
    assert not whole_matrix.needs_whole_matrix(optimizer, table)
    whole_matrix.require_supported(optimizer, [table])


@pytest.mark.parametrize("name", ["Adafactor", "Lamb", "Muon"])
def test_whole_matrices_are_not_cut(name: str) -> None:
    optimizer = getattr(_optimizers, name)()
    whole_matrix.require_supported(optimizer, [_variable("kernel", 0)])
    with pytest.raises(errors.UnsupportedError) as caught:
        whole_matrix.require_supported(optimizer, [_variable("kernel", 3)])
    for text in (name, "'kernel'", "3 shards", "shape=(6, 2)", "partitioner"):
        assert text in str(caught.value)


@pytest.mark.parametrize("name", ["Adafactor", "Lamb", "Muon"])
@pytest.mark.parametrize("num_shards", [0, 2])
def test_a_table_without_a_vocabulary_is_no_matrix(
    name: str, num_shards: int
) -> None:
    table = _variable("items", num_shards)
    table_behind(table)[0].has_directory = True  # type: ignore[index]
    with pytest.raises(
        errors.UnsupportedError,
        match=f"{name}.*table 'items'.*Received: optimizer={name}",
    ) as caught:
        whole_matrix.require_supported(getattr(_optimizers, name)(), [table])
    assert "partitioner" not in str(caught.value), "it would not help"
    whole_matrix.require_supported(_optimizers.Adam(), [table])


def test_muon_leaves_embeddings_to_adamw() -> None:
    table = _variable("embeddings", 2)
    whole_matrix.require_supported(_optimizers.Muon(), [table])
    with pytest.raises(errors.UnsupportedError, match="exclude_layers"):
        whole_matrix.require_supported(
            _optimizers.Muon(exclude_embeddings=False), [table]
        )


def test_variables_of_tensorflow_are_none_of_ours() -> None:
    whole_matrix.require_supported(_optimizers.Lamb(), [tf.Variable([[1.0]])])


def test_wrappers_are_looked_into() -> None:
    table = _variable("kernel", 2)
    with pytest.raises(errors.UnsupportedError, match="Lamb"):
        whole_matrix.require_compilable(
            _optimizers.LossScaleOptimizer(_optimizers.Lamb()), [table]
        )
    whole_matrix.require_compilable(None, [table])


@pytest.mark.skipif(
    not hasattr(_optimizers, "MultiOptimizer"), reason="since Keras 3.15"
)
def test_each_variable_is_checked_with_its_own_optimizer() -> None:
    optimizer = _optimizers.MultiOptimizer(
        _optimizers.OptimizerMap(
            _optimizers.Lamb(), {"table": _optimizers.Adam()}
        )
    )
    whole_matrix.require_compilable(
        optimizer, [_variable("table", 2), _variable("kernel", 0)]
    )
    with pytest.raises(errors.UnsupportedError, match="'kernel'"):
        whole_matrix.require_compilable(optimizer, [_variable("kernel", 2)])


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
    assert whole_matrix.is_row_wise(constraint, 2) is expected


def _constrained(constraint: Any, num_shards: int) -> keras.Variable:
    variable = _variable("table", num_shards)
    variable.constraint = constraint
    return variable


def test_a_whole_variable_may_have_any_constraint() -> None:
    whole_matrix.require_row_wise(_constrained(_constraints.MaxNorm(), 0))


def test_shards_may_have_constraints_of_rows() -> None:
    whole_matrix.require_row_wise(_constrained(_constraints.NonNeg(), 2))
    whole_matrix.require_row_wise(_constrained(_OfElements(), 2))


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
        whole_matrix.require_row_wise(_constrained(constraint, 3))
    for text in ("'table'", "3 shards", "row_wise", "variable_partitioner"):
        assert text in str(caught.value)

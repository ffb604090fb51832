from typing import Any

import keras
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.variables import testing

_optimizers = keras.optimizers


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

"""Lookups match those of plain variables, and never read a whole table."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.training.patches import hooks
from tfps_plugin.variables import testing
from tfps_plugin.variables.lookup.distinct_rows import distinct

_ROWS = 23
_VALUE = np.random.default_rng(0).normal(size=(_ROWS, 4)).astype("float32")

hooks.install()


def _as_table(kind: str, value: Any) -> Any:
    if kind == "sharded" and value.shape.rank and value.shape[0] >= 3:
        return testing.sharded_variable(value, 3)
    return testing.remote_variable(value)


def _create(kind: str, make: Callable[[], Any]) -> Any:
    """Calls `make` with the variables that a strategy would create."""

    def creator(next_creator: Any, **options: Any) -> Any:
        value = options["initial_value"]
        if options.get("synchronization") == tf.VariableSynchronization.ON_READ:
            return next_creator(**options)
        variable = _as_table(
            kind,
            tf.cast(value() if callable(value) else value, options["dtype"]),
        )
        variable.path = options["name"]
        return variable

    with tf.variable_creator_scope(creator):
        return make()


def _table(kind: str) -> keras.Variable:
    return _create(kind, lambda: keras.Variable(_VALUE, name="table"))


def _dense(gradient: Any) -> np.ndarray:
    return tf.convert_to_tensor(gradient).numpy()


def _forward_and_gradients(
    function: Callable[[], Any], variables: list[Any]
) -> tuple[Any, list[np.ndarray]]:
    with tf.GradientTape() as tape:
        result = function()
        loss = tf.reduce_sum(_flat(result) ** 2)
    gradients = tape.gradient(loss, [v.value for v in variables])
    return result, [_dense(gradient) for gradient in gradients]


def _flat(result: Any) -> tf.Tensor:
    if isinstance(result, tf.RaggedTensor):
        return result.flat_values
    return result


def _whole_reads(traced: Any, shape: tuple[int, ...] = (_ROWS, 4)) -> int:
    """Counts whole reads of variables of a shape in a `tf.function`."""
    graph = traced.get_concrete_function().graph
    return sum(
        # Shards are read one by one and joined.
        op.type in ("ReadVariableOp", "ConcatV2")
        # A read that only a custom gradient uses is the anchor, without rows.
        and {user.type for user in op.outputs[0].consumers()} != {"IdentityN"}
        and op.outputs[0].shape.rank == len(shape)
        and tuple(op.outputs[0].shape) == shape
        for op in graph.get_operations()
    )


def _assert_alike(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, tf.RaggedTensor):
        for mine, right in zip(
            actual.nested_row_splits, expected.nested_row_splits, strict=True
        ):
            np.testing.assert_array_equal(mine, right)
    assert _flat(actual).dtype == _flat(expected).dtype
    assert actual.shape.as_list() == expected.shape.as_list()
    np.testing.assert_allclose(_flat(actual), _flat(expected), rtol=1e-5)


def _assert_as_plain(
    kind: str,
    function: Callable[[Any], Any],
    *,
    by_itself: bool = False,
    reads_whole: bool = False,
) -> None:
    # TensorFlow itself fails on a keras.Variable in some of its lookups.
    plain, table = keras.Variable(_VALUE), _table(kind)
    expected, right = _forward_and_gradients(
        lambda: function(plain.value), [plain]
    )

    def look_up() -> Any:
        return function(table.value if by_itself else table)

    traced = tf.function(look_up)
    for call in (look_up, traced):
        actual, gradients = _forward_and_gradients(call, [table])
        _assert_alike(actual, expected)
        np.testing.assert_allclose(gradients, right, rtol=1e-5, atol=1e-6)
    assert (_whole_reads(traced) > 0) == reads_whole


_RAGGED = tf.ragged.constant([[1, 1, 22], [], [0], [5, 1]])
_DEEP_RAGGED = tf.ragged.constant([[[1, 1], []], [[22, 7, 0]], []])
_SPARSE = tf.SparseTensor(
    [[0, 0], [0, 2], [1, 1], [3, 0]],
    tf.constant([3, 22, 3, 1], tf.int64),
    [4, 3],
)
_WEIGHTS = [0.5, 2.0, 1.0, -1.0]
_SPARSE_WEIGHTS = _SPARSE.with_values(tf.constant(_WEIGHTS))
_FULL_RAGGED = tf.ragged.constant([[1, 1, 22], [3], [0], [5, 1]])
_FULL_SPARSE = _FULL_RAGGED.to_sparse()

_IDS = {
    "list": [[1, 2], [1, 22]],
    "scalar": 3,
    "repeated": tf.constant([4, 4, 0, 22, 4]),
    "int64": tf.constant([[[0], [22]]], tf.int64),
    "int8": tf.constant([1, 1, 2], tf.int8),
    "uint8": tf.constant([1, 1, 2], tf.uint8),
    "uint16": tf.constant([1, 1, 2], tf.uint16),
    "array": np.array([[5, 6, 5]]),
    "none": tf.zeros([2, 0], tf.int32),
    "negative": tf.constant([[-1, 22], [-23, 0]]),
    "ragged": _RAGGED,
    "negative ragged": tf.ragged.constant([[-1], [], [3, -23]]),
    "deep ragged": _DEEP_RAGGED,
    "sparse": _SPARSE,
    "negative sparse": _SPARSE.with_values([-1, 22, 3, -20]),
}
_KINDS = ["sharded", "whole"]


@pytest.mark.compat
@pytest.mark.parametrize("ids", _IDS.values(), ids=_IDS.keys())
@pytest.mark.parametrize("kind", _KINDS)
def test_keras_take(kind: str, ids: Any) -> None:
    if getattr(ids, "dtype", None) in (tf.int8, tf.uint8, tf.uint16):
        # TensorFlow itself does not look up such ids.
        table, wide = _table(kind), tf.cast(ids, tf.int32)
        _assert_alike(
            keras.ops.take(table, ids, axis=0), tf.gather(_VALUE, wide)
        )
        return
    _assert_as_plain(kind, lambda table: keras.ops.take(table, ids, axis=0))


@pytest.mark.parametrize("kind", _KINDS)
def test_keras_take_along_another_axis_reads_the_whole(kind: str) -> None:
    ids = tf.constant([1, 3])
    _assert_as_plain(
        kind, lambda table: keras.ops.take(table, ids, 1), reads_whole=True
    )
    _assert_as_plain(
        kind, lambda table: keras.ops.take(table, ids), reads_whole=True
    )
    _assert_as_plain(kind, lambda table: keras.ops.take(table, ids, -2))


_LOOKUPS: dict[str, Callable[[Any], Any]] = {
    "gather": lambda t: tf.gather(t, [[1, 1], [22, 0]]),
    "gather ragged": lambda t: tf.gather(t, _RAGGED),
    "gather deep ragged": lambda t: tf.gather(t, _DEEP_RAGGED, axis=0),
    "gather in batches of none": lambda t: tf.gather(t, [3, 3], batch_dims=0),
    "embedding_lookup": lambda t: tf.nn.embedding_lookup(t, [[1, 1], [22, 0]]),
    "embedding_lookup ragged": lambda t: tf.nn.embedding_lookup(t, _RAGGED),
    "embedding_lookup norm": lambda t: tf.nn.embedding_lookup(
        t, [1, 1, 22], max_norm=0.7
    ),
    "list of one": lambda t: tf.nn.embedding_lookup([t], [1, 2, 1]),
}


def _combining(combiner: str) -> dict[str, Callable[[Any], Any]]:
    return {
        f"sparse {combiner}": lambda t: tf.nn.embedding_lookup_sparse(
            t, _FULL_SPARSE, None, combiner=combiner
        ),
        f"sparse {combiner} weights norm": lambda t: (
            tf.nn.embedding_lookup_sparse(
                t,
                _FULL_SPARSE,
                tf.cast(_FULL_SPARSE, tf.float32),
                combiner=combiner,
                max_norm=0.7,
            )
        ),
        f"sparse {combiner} fast": lambda t: tf.nn.embedding_lookup_sparse(
            t, _FULL_SPARSE, None, combiner=combiner, allow_fast_lookup=True
        ),
        f"sparse {combiner} ragged": lambda t: tf.nn.embedding_lookup_sparse(
            t, _FULL_RAGGED, None, combiner=combiner
        ),
        f"safe {combiner}": lambda t: tf.nn.safe_embedding_lookup_sparse(
            t, _SPARSE, combiner=combiner
        ),
        f"safe {combiner} weights": lambda t: (
            tf.nn.safe_embedding_lookup_sparse(
                t, _SPARSE, _SPARSE_WEIGHTS, combiner=combiner, default_id=7
            )
        ),
        f"safe {combiner} invalid norm": lambda t: (
            tf.nn.safe_embedding_lookup_sparse(
                t,
                _SPARSE.with_values(tf.constant([-1, 22, -3, 1], tf.int64)),
                combiner=combiner,
                max_norm=0.7,
            )
        ),
        f"safe {combiner} ragged": lambda t: tf.nn.safe_embedding_lookup_sparse(
            t, _RAGGED, combiner=combiner
        ),
    }


for _combiner in ("mean", "sum", "sqrtn"):
    _LOOKUPS |= _combining(_combiner)


# A combining lookup takes the same path for all combiners, sharded or not, so
# not every pair is needed.
_CASES = [("sharded", name) for name in _LOOKUPS] + [
    ("whole", name)
    for name in _LOOKUPS
    if "sum" not in name and "sqrtn" not in name
]


@pytest.mark.compat
@pytest.mark.sample(cases=24)
@pytest.mark.parametrize(("kind", "name"), _CASES)
def test_tensorflow_lookups(kind: str, name: str) -> None:
    _assert_as_plain(kind, _LOOKUPS[name])


@pytest.mark.parametrize(
    "name", ["gather", "embedding_lookup", "sparse mean", "safe mean weights"]
)
@pytest.mark.parametrize("kind", _KINDS)
def test_lookups_in_a_table_that_no_keras_variable_holds(
    kind: str, name: str
) -> None:
    _assert_as_plain(kind, _LOOKUPS[name], by_itself=True)


@pytest.mark.parametrize("kind", _KINDS)
def test_gathers_that_need_the_whole_are_right(kind: str) -> None:
    ids = tf.constant([[i % 4] for i in range(_ROWS)])
    for gather in (
        lambda t: tf.gather(t, [0, 3, 3], axis=1),
        lambda t: tf.gather(t, ids, batch_dims=1),
        lambda t: tf.gather(t, ids, axis=1, batch_dims=1),
        lambda t: tf.gather(t, tf.ragged.constant([[0], [3, 3]]), axis=1),
    ):
        _assert_as_plain(kind, gather, reads_whole=True)


def _layers(kind: str, make: Callable[[], Any]) -> tuple[Any, Any]:
    """Makes the same layer twice: plain, and on our tables."""
    layers = []
    for create in (lambda make: make(), lambda make: _create(kind, make)):
        keras.utils.set_random_seed(4)
        layers.append(create(make))
    return layers[0], layers[1]


def _assert_layers_alike(
    kind: str, make: Callable[[], Any], call: Callable[[Any], Any]
) -> None:
    plain, ours = _layers(kind, make)
    weights = plain.trainable_variables
    expected, right = _forward_and_gradients(lambda: call(plain), weights)
    actual, gradients = _forward_and_gradients(
        tf.function(lambda: call(ours)), ours.trainable_variables
    )
    _assert_alike(actual, expected)
    for mine, theirs in zip(gradients, right, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def _built(**options: Any) -> keras.layers.Layer:
    layer = keras.layers.Embedding(_ROWS, 4, **options)
    layer.build()
    return layer


_INPUTS = {
    key: _IDS[key]
    for key in ("repeated", "int8", "none", "negative", "ragged", "sparse")
} | {"floats": tf.constant([[3.0, 1.0]])}


@pytest.mark.compat
@pytest.mark.parametrize("ids", _INPUTS.values(), ids=_INPUTS.keys())
@pytest.mark.parametrize("kind", _KINDS)
def test_embedding(kind: str, ids: Any) -> None:
    _assert_layers_alike(kind, _built, lambda layer: layer(ids))


@pytest.mark.parametrize("kind", _KINDS)
def test_embedding_masks_zero(kind: str) -> None:
    def pooled(layer: Any) -> tf.Tensor:
        return keras.layers.GlobalAveragePooling1D()(
            layer(tf.constant([[1, 0, 3], [2, 2, 0]]))
        )

    _assert_layers_alike(kind, lambda: _built(mask_zero=True), pooled)


@pytest.mark.parametrize("kind", _KINDS)
def test_one_table_of_several_inputs(kind: str) -> None:
    def both(layer: Any) -> tf.Tensor:
        return layer(tf.constant([1, 1, 5])) * layer(tf.constant([5, 22, 1]))

    _assert_layers_alike(kind, _built, both)


def _lora() -> keras.layers.Layer:
    layer = _built()
    layer.enable_lora(2, b_initializer="normal")
    return layer


@pytest.mark.compat
@pytest.mark.parametrize("ids", _INPUTS.values(), ids=_INPUTS.keys())
@pytest.mark.parametrize("kind", _KINDS)
def test_lora(kind: str, ids: Any) -> None:
    _assert_layers_alike(kind, _lora, lambda layer: layer(ids))


def test_lora_reads_no_whole_table() -> None:
    _, layer = _layers("sharded", _lora)
    ids = tf.constant([1, 1, 22])
    traced = tf.function(lambda: layer(ids))
    assert not _whole_reads(traced, (_ROWS, 4))
    assert not _whole_reads(traced, (_ROWS, 2))


@pytest.mark.compat
@pytest.mark.parametrize("kind", _KINDS)
def test_reversible_embedding(kind: str) -> None:
    def make() -> keras.layers.Layer:
        layer = keras.layers.ReversibleEmbedding(_ROWS, 4)
        layer.build()
        return layer

    def there_and_back(layer: Any) -> tf.Tensor:
        return layer(layer(tf.constant([[1, 1, 22]])), reverse=True)

    _assert_layers_alike(kind, make, there_and_back)


@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.parametrize("kind", _KINDS)
def test_a_quantized_embedding(kind: str, mode: str) -> None:
    def make() -> keras.layers.Layer:
        layer = _built()
        layer.quantize(mode)
        return layer

    plain, ours = _layers(kind, make)
    ids = tf.constant([[1, 1, 22]])
    _assert_alike(tf.function(lambda: ours(ids))(), plain(ids))


@pytest.mark.parametrize(
    ("combiner", "weighted"),
    [("mean", True), ("sum", False), ("sqrtn", True)],
)
@pytest.mark.parametrize("ids", ["dense", "ragged", "sparse"])
@pytest.mark.parametrize("kind", _KINDS)
def test_keras_rs_embed_reduce(
    kind: str, ids: str, combiner: str, weighted: bool
) -> None:
    keras_rs = pytest.importorskip("keras_rs")
    inputs = {
        "dense": tf.constant([[1, 1], [22, 3]]),
        "ragged": _RAGGED,
        "sparse": _SPARSE,
    }[ids]
    weights = None
    if weighted:
        weights = {
            "dense": tf.constant([[1.0, 0.5], [2.0, 1.0]]),
            "ragged": tf.cast(_RAGGED, tf.float32),
            "sparse": _SPARSE_WEIGHTS,
        }[ids]

    def make() -> keras.layers.Layer:
        layer = keras_rs.layers.EmbedReduce(_ROWS, 4, combiner=combiner)
        layer.build()
        return layer

    _assert_layers_alike(kind, make, lambda layer: layer(inputs, weights))


@pytest.mark.parametrize("kind", _KINDS)
def test_mixed_precision_casts_rows_only(kind: str) -> None:
    class Rows(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(dtype="mixed_float16")
            self.table = self.add_weight(
                shape=(_ROWS, 4), initializer="uniform"
            )

        def call(self, ids: tf.Tensor) -> tf.Tensor:
            return keras.ops.take(self.table, ids, axis=0) + tf.gather(
                self.table, ids
            )

    ids = tf.constant([1, 22])
    plain, ours = _layers(kind, Rows)
    _assert_alike(ours(ids), plain(ids))
    assert not _whole_reads(tf.function(lambda: ours(ids)))


def test_a_stateless_scope_shows_its_own_value() -> None:
    table = _table("sharded")
    other = tf.ones([_ROWS, 4])
    with keras.StatelessScope(state_mapping=[(table, other)]):
        np.testing.assert_array_equal(
            keras.ops.take(table, [1, 2], axis=0), other[:2]
        )


@pytest.mark.compat
@pytest.mark.parametrize("kind", _KINDS)
def test_the_gradient_of_one_lookup_has_no_id_twice(kind: str) -> None:
    table = _table(kind)
    are_summed = []

    @tf.function
    def differentiate() -> Any:
        with tf.GradientTape() as tape:
            rows = keras.ops.take(table, [-1, 22, 1, 1], axis=0)
        gradient = tape.gradient(rows, table)
        are_summed.append(distinct(gradient).indices is not gradient.indices)
        return gradient.indices

    assert sorted(differentiate().numpy()) == [1, 22]
    assert are_summed == [False]


@pytest.mark.compat
@pytest.mark.parametrize("where", ["eager", "function"])
@pytest.mark.parametrize(
    ("lookup", "bad"),
    [
        (lambda t: keras.ops.take(t, [1, 23], axis=0), 23),
        (lambda t: keras.ops.take(t, [1, -24], axis=0), -24),
        (lambda t: keras.ops.take(t, _RAGGED + 1, axis=0), 23),
        (lambda t: tf.gather(t, [1, -1]), -1),
        (lambda t: tf.gather(t, _RAGGED - 1), -1),
        (lambda t: tf.nn.embedding_lookup(t, [99, 1]), 99),
        (lambda t: tf.nn.safe_embedding_lookup_sparse(t, _RAGGED + 1), 23),
    ],
)
@pytest.mark.parametrize("kind", _KINDS)
def test_an_id_outside_the_table_is_named(
    kind: str, lookup: Callable[[Any], Any], bad: int, where: str
) -> None:
    table = _table(kind)
    call = (
        (lambda: lookup(table))
        if where == "eager"
        else (tf.function(lambda: lookup(table)))
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        call()
    message = str(raised.value)
    assert "the table table were" in message
    assert "rows 0 to 22" in message
    assert f"[{bad}]" in message

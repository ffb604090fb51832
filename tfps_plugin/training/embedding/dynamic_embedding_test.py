"""Tests of embeddings without a vocabulary in one process."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.variables.dynamic import contents
from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.row_space import RowSpace

_FIRST = keras.initializers.RandomNormal(seed=9)
# Rules by which a step would leave ids out, and one that has none.
_RULES: list[dict[str, Any]] = [
    {},
    {"admission": tfps.layers.Admission(3)},
    {"admission": tfps.layers.Admission(3, counts="exact")},
    {"admission": tfps.layers.Admission(probability=0.1)},
    {"eviction": tfps.layers.Eviction()},
    {"eviction": tfps.layers.Eviction("least_frequent")},
    {"eviction": tfps.layers.Eviction(None, unseen_steps=1)},
    {"eviction": tfps.layers.Eviction(None, unseen_seconds=1e-6)},
]


def _layer(**options: Any) -> tfps.layers.DynamicEmbedding:
    return tfps.layers.DynamicEmbedding(
        4, _FIRST, capacity=100, name="items", **options
    )


@pytest.mark.parametrize("combiner", [None, "sum"])
@pytest.mark.parametrize("dtype", ["int32", "uint32", "uint64"])
def test_integers_of_any_width_keep_their_value(
    combiner: str | None, dtype: str
) -> None:
    top = 2**31 - 1 if dtype == "int32" else 2**32 - 1
    ids = np.array([5, top, top - 1], dtype)
    rows = _layer(combiner=combiner)(tf.constant(ids), training=True)
    expected = _layer()(tf.constant(ids.astype("int64")), training=True)
    np.testing.assert_array_equal(rows, expected)
    assert len(np.unique(rows, axis=0)) == 3


def test_wide_ids_share_no_row() -> None:
    layer = _layer(combiner="sum")
    ids = tf.ragged.constant([[5], [2**32 + 5]], dtype=tf.int64)
    rows = layer(ids, training=True).numpy()
    assert layer.size() == 2
    assert np.abs(rows[0] - rows[1]).min() > 0


def test_bytes_and_strings_are_told_apart_from_numbers() -> None:
    layer = _layer()
    layer(tf.constant(["5", "six"]), training=True)
    layer(tf.constant([5, 6]), training=True)
    assert layer.size() == 4


def test_a_gradient_trains_rows_without_being_told() -> None:
    layer = _layer()
    ids = tf.constant([3, 4])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(ids))
    (gradient,) = tape.gradient(loss, layer.trainable_weights)
    assert layer.size() == 2
    np.testing.assert_array_equal(gradient.values, np.ones((2, 4)))


_FLOATS = tf.constant([16777216.0, 16777217.0, 1.5, 1.2])


def _ragged(values: tf.Tensor) -> tf.RaggedTensor:
    return tf.RaggedTensor.from_row_lengths(values, [len(values)])


def _sparse(values: tf.Tensor) -> tf.SparseTensor:
    places = [[0, place] for place in range(len(values))]
    return tf.SparseTensor(places, values, [1, len(values)])


@pytest.mark.parametrize(
    "ids",
    [
        _FLOATS,
        tf.cast(_FLOATS, tf.float64),
        tf.cast(_FLOATS, tf.bfloat16),
        tf.constant([True, False]),
        _FLOATS.numpy(),
        _ragged(_FLOATS),
        _sparse(_FLOATS),
    ],
    ids=lambda ids: f"{type(ids).__name__} {ids.dtype}",
)
@pytest.mark.parametrize("in_graph", [False, True])
def test_numbers_that_lose_their_difference_are_no_ids(
    ids: Any, in_graph: bool
) -> None:
    layer = _layer(combiner="sum")
    layer.build()
    call: Callable[..., Any] = layer
    if in_graph:
        call = tf.function(layer)
    name = tf.as_dtype(ids.dtype).name
    with pytest.raises(
        errors.InputError, match=f"layer 'items'.*Received: dtype={name}.*Input"
    ):
        call(ids, training=True)
    assert layer.size() == 0


def test_the_default_dtype_of_an_input_is_refused() -> None:
    with pytest.raises(errors.InputError, match=r"dtype=float32.*'int64'"):
        _layer()(keras.Input((3,)))
    wide = tf.constant([2**62, 2**62 + 1], tf.int64)
    # Without an input layer, it takes its dtype from the rows.
    with pytest.raises(errors.InputError, match=r"first layer of a keras\."):
        keras.Sequential([_layer()])(wide)
    model = keras.Sequential([keras.Input((), dtype="int64"), _layer()])
    rows = model(wide, training=True).numpy()
    assert np.abs(rows[0] - rows[1]).min() > 0


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "float64"])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "string"])
def test_models_pass_ids_on_as_they_are(dtype: str, policy: str) -> None:
    ids: Any = np.array([[2**31 - 1, 2**31 - 2], [5, 2**31 - 1]])
    if dtype.endswith("64"):
        ids = ids + 2**62
    layer = _layer(dtype=policy)
    inputs = keras.Input((2,), dtype=dtype)
    model = keras.Model(inputs, layer(inputs))
    ids = ids.astype("str" if dtype == "string" else dtype)
    given = tf.constant(ids)
    model(given, training=True)
    assert layer.size() == 3
    np.testing.assert_array_equal(model(given), layer(given))
    if dtype != "string":
        assert sorted(layer.export()[0]) == sorted(np.unique(ids))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_casts_rows_and_not_the_table(policy: str) -> None:
    fixed = keras.layers.Embedding(3, 4, dtype=policy)
    fixed.build()
    fixed.embeddings.assign(_layer()(tf.constant([7, 8, 9])))
    layer = _layer(dtype=policy)
    for each, asked in ((layer, [9, 7, 9]), (fixed, [2, 0, 2])):
        with tf.GradientTape() as tape:
            rows = each(tf.constant(asked))
            loss = tf.reduce_sum(rows * rows)
        assert rows.dtype == policy.removeprefix("mixed_")
        optimizer = keras.optimizers.SGD(0.5)
        weights = each.trainable_weights
        optimizer.apply(tape.gradient(loss, weights), weights)
    ids, rows = layer.export()
    assert rows.dtype == "float32"
    np.testing.assert_array_equal(
        rows[np.argsort(ids)], fixed.embeddings.numpy()[[0, 2]]
    )


def test_no_ids_have_no_dtype() -> None:
    layer = _layer(combiner="sum")
    assert layer(tf.constant([]), training=True).shape == (0, 4)
    assert layer(tf.ragged.constant([[], []])).shape == (2, 4)
    layer.import_([], np.zeros((0, 4)))
    assert layer.size() == 0


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_last_of_several_axes_is_combined(
    combiner: str, length: int, weighted: bool
) -> None:
    layer = _layer(combiner=combiner)
    random = np.random.default_rng(0)
    ids = random.integers(0, 9, (2, 5, 4, length))
    weights = random.random(ids.shape).astype("float32") if weighted else None
    rows = _layer()(tf.constant(ids)).numpy()
    used = np.ones_like(ids) if weights is None else weights
    divisor = {
        "sum": 1.0,
        "mean": used.sum(-1, keepdims=True),
        "sqrtn": np.sqrt((used**2).sum(-1, keepdims=True)),
    }[combiner]
    expected = (rows * used[..., None]).sum(-2) / divisor
    outputs = layer(ids, weights, training=True)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)
    flat = ids.reshape(-1, length)
    np.testing.assert_allclose(
        layer(flat, None if weights is None else weights.reshape(flat.shape)),
        expected.reshape(-1, 4),
        rtol=1e-5,
    )
    spec = layer(keras.Input((5, None, length), dtype="int64"))
    assert spec.shape == (None, 5, None, 4)


def test_weights_are_given_for_the_same_places() -> None:
    layer = _layer(combiner="sum")
    free = [None, None, None]

    @tf.function(
        input_signature=[
            tf.TensorSpec(free, tf.int64),
            tf.TensorSpec(free, tf.float32),
        ]
    )
    def call(ids: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return layer(ids, weights)

    ids = tf.ones((2, 3, 4), tf.int64)
    assert call(ids, tf.ones((2, 3, 4))).shape == (2, 3, 4)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="weights of the layer"
    ):
        call(ids, tf.ones((3, 2, 4)))
    with pytest.raises(errors.InputError, match="weights of the layer 'items'"):
        layer(ids, tf.ones((2, 12)))


@pytest.mark.parametrize("combiner", [None, "sum"])
def test_a_model_is_refused_what_a_call_is_refused(
    combiner: str | None,
) -> None:
    layer = _layer(combiner=combiner)
    ids = tf.ragged.constant([[[1], [2, 3]]], dtype=tf.int64)
    told = r"Received: inputs=a ragged or sparse tensor.*\. [A-Z]"
    with pytest.raises(errors.InputError, match=told):
        layer(ids)
    with pytest.raises(errors.InputError, match=told):
        layer(keras.Input((None, None), dtype="int64", ragged=True))
    if combiner is not None:
        with pytest.raises(errors.InputError, match="rank 1 or more"):
            layer(tf.constant(7))


def test_padding_is_masked() -> None:
    layer = _layer(mask_zero=True)
    mask = layer.compute_mask(tf.constant([[0, 7]]))
    np.testing.assert_array_equal(mask, [[False, True]])


def test_a_mask_does_not_go_with_a_combiner() -> None:
    with pytest.raises(
        errors.UnsupportedError,
        match=r"mask_zero=True, combiner='mean'.*weights",
    ):
        _layer(combiner="mean", mask_zero=True)
    # The way out that the message names.
    ids = np.array([[3, 4, 0], [5, 0, 0]])
    outputs = _layer(combiner="mean")(ids, (ids != 0).astype("float32"))
    rows = _layer()(np.array([3, 4, 5])).numpy()
    expected = [(rows[0] + rows[1]) / 2, rows[2]]
    np.testing.assert_allclose(outputs, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "reduce",
    [
        keras.layers.GlobalAveragePooling1D,
        lambda: keras.layers.GRU(
            3, kernel_initializer="ones", recurrent_initializer="ones"
        ),
    ],
    ids=["GlobalAveragePooling1D", "GRU"],
)
@pytest.mark.parametrize("strings", [False, True])
def test_models_mask_padding_as_those_of_a_fixed_table(
    reduce: Callable[[], Any], strings: bool
) -> None:
    random = np.random.default_rng(1)
    places = random.integers(1, 20, (16, 5))
    places[np.arange(5) >= random.integers(1, 6, (16, 1))] = 0
    targets = random.random((16, 1)).astype("float32")
    ids: Any = np.where(places == 0, 0, places * 2**40 - 7)
    dtype = "int64"
    if strings:
        ids, dtype = np.where(places == 0, "", places.astype(str)), "string"
    known = tf.constant([ids[places == place][0] for place in range(20)])

    def fit(layer: Any, inputs: Any, dtype: str) -> list[float]:
        ids = keras.Input((5,), dtype=dtype)
        dense = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Model(ids, dense(reduce()(layer(ids))))
        model.compile(keras.optimizers.SGD(0.3), "mse")
        if layer is fixed:
            layer.embeddings.assign(_layer()(known))
        history = model.fit(
            tf.constant(inputs),
            targets,
            batch_size=4,
            epochs=3,
            shuffle=False,
            verbose=0,
        )
        losses: list[float] = history.history["loss"]
        return losses

    fixed = keras.layers.Embedding(20, 4, mask_zero=True)
    layer = _layer(mask_zero=True)
    np.testing.assert_allclose(
        fit(layer, ids, dtype), fit(fixed, places, "int64"), rtol=1e-5
    )
    np.testing.assert_allclose(layer(known), fixed.embeddings, rtol=1e-4)


def test_weights_need_a_combiner() -> None:
    with pytest.raises(errors.InputError, match="has no combiner"):
        _layer()(tf.constant([1]), tf.constant([1.0]))


def test_eviction_needs_a_strategy_to_train() -> None:
    layer = _layer(eviction=tfps.layers.Eviction())
    assert layer(tf.constant([1])).shape == (1, 4)
    with pytest.raises(
        errors.UnsupportedError, match=r"evicts rows.*Strategy\(\) without"
    ):
        layer(tf.constant([1]), training=True)


def test_an_export_has_no_rows_that_change_hands_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layer = _layer()
    first = layer(tf.constant([1, 2, 3]), training=True).numpy()
    records = layer.weights[1].value
    fetch = contents._fetch

    def fetch_rows_late(part: Any, rows: Any) -> Any:
        fetched = fetch(part, rows)
        if part is not records and not np.any(records.numpy() == 7):
            # A step gives the row of 2 to 7.
            own = np.flatnonzero(records.numpy()[:, 0] == 2)
            assert len(own) == 1
            records.scatter_update(tf.IndexedSlices([[7, 1]], own))
        return fetched

    monkeypatch.setattr(contents, "_fetch", fetch_rows_late)
    found = dict(zip(*layer.export(), strict=True))
    assert sorted(found) == [1, 3]
    np.testing.assert_array_equal(found[1], first[0])
    np.testing.assert_array_equal(found[3], first[2])
    assert sorted(layer.export()[0]) == [1, 3, 7]


@pytest.mark.parametrize("rules", _RULES, ids=str)
def test_rows_that_are_imported_are_looked_up(rules: dict[str, Any]) -> None:
    layer = _layer(**rules)
    ids = np.array([-(2**63), 7, -7, *range(100, 150)])
    rows = np.arange(4.0 * len(ids)).reshape(-1, 4)
    layer.import_(ids[:3], -rows[:3])
    layer.import_(ids, rows)
    np.testing.assert_array_equal(layer(tf.constant(ids)), rows)
    found, exported = layer.export()
    assert layer.size() == len(found) == len(ids)
    np.testing.assert_array_equal(
        exported[np.argsort(found)], rows[np.argsort(ids)]
    )
    assert layer.statistics()["made"] == len(ids)
    with pytest.raises(errors.InputError, match="distinct"):
        layer.import_([7, 7], np.zeros((2, 4)))


@pytest.mark.parametrize("rules", _RULES[::2], ids=str)
def test_an_import_without_room_imports_nothing(rules: dict[str, Any]) -> None:
    layer = _layer(**rules)
    kept = np.array([-(2**63), 3, 4])
    layer.import_(kept, np.ones((3, 4)))
    ids = np.array([*kept, *range(1000, 4000)])
    # The lowest id takes no room of others.
    buckets = id_hashing.buckets_of(tf.constant(ids[1:])).numpy()
    per_bucket = RowSpace.for_capacity(100).rows_per_bucket - RowSpace.RESERVED
    in_excess = np.maximum(np.bincount(buckets) - per_bucket, 0).sum()
    message = f"'items'.* no room for {in_excess} of .*capacity=100, 3 ids"
    with pytest.raises(errors.InputError, match=message):
        layer.import_(ids, np.zeros((len(ids), 4)))
    assert sorted(layer.export()[0]) == sorted(kept)
    np.testing.assert_array_equal(layer(tf.constant(kept)), np.ones((3, 4)))

    # Every place may be filled, and overwritten.
    order = np.argsort(buckets, kind="stable")
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order)) - np.searchsorted(
        buckets[order], buckets[order]
    )
    fitting = np.append(ids[:1], ids[1:][ranks < per_bucket])
    for value in (2.0, 3.0):
        layer.import_(fitting, np.full((len(fitting), 4), value))
        assert sorted(layer.export()[0]) == sorted(fitting)
        assert np.all(layer.export()[1] == value)


def test_a_configuration_makes_the_same_layer() -> None:
    layer = _layer(
        combiner="mean",
        unknown="zeros",
        admission=tfps.layers.Admission(2),
        eviction=tfps.layers.Eviction("least_frequent"),
    )
    other = tfps.layers.DynamicEmbedding.from_config(layer.get_config())
    assert other.get_config() == layer.get_config()

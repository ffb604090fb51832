"""Tests of embeddings without a vocabulary in one process."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors
from tfps_plugin.variables.dynamic import id_hashing
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


def test_mixed_precision_trains_rows_of_float32() -> None:
    layer = _layer(dtype="mixed_bfloat16")
    ids = tf.constant([3, 4])
    with tf.GradientTape() as tape:
        rows = layer(ids)
        loss = tf.reduce_sum(rows)
    (gradient,) = tape.gradient(loss, layer.trainable_weights)
    assert rows.dtype == tf.bfloat16
    assert gradient.dtype == layer._embeddings.dtype == tf.float32
    assert layer.size() == 2


def test_padding_is_masked() -> None:
    layer = _layer(mask_zero=True)
    mask = layer.compute_mask(tf.constant([[0, 7]]))
    np.testing.assert_array_equal(mask, [[False, True]])


def test_weights_need_a_combiner() -> None:
    with pytest.raises(errors.InputError, match="has no combiner"):
        _layer()(tf.constant([1]), tf.constant([1.0]))


def test_eviction_needs_a_strategy_to_train() -> None:
    layer = _layer(eviction=tfps.layers.Eviction())
    assert layer(tf.constant([1])).shape == (1, 4)
    with pytest.raises(errors.UnsupportedError, match="evicts rows"):
        layer(tf.constant([1]), training=True)


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

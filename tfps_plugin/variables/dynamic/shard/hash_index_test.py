"""Tests of the hash tables from keys to rows."""

import numpy as np
import tensorflow as tf

from tfps_plugin.variables.dynamic.ids import id_hashing
from tfps_plugin.variables.dynamic.row_space import RowSpace
from tfps_plugin.variables.dynamic.shard import hash_index


def test_ids_that_are_spread_to_the_lowest_numbers_are_found() -> None:
    lowest = tf.int64.min + np.arange(RowSpace.NUM_LOWEST)
    # None of them is spread to another of them.
    assert np.all(
        id_hashing.spread(tf.constant(lowest)).numpy() >= hash_index.FIRST_KEY
    )
    places = lowest.view(np.uint64)
    factor = np.uint64(pow(id_hashing.GOLDEN, -1, 2**64))
    products = (places ^ (places >> np.uint64(32))) * factor
    ids = (products ^ (products >> np.uint64(32))).view(np.int64)
    np.testing.assert_array_equal(id_hashing.spread(tf.constant(ids)), lowest)
    index = hash_index.HashIndex("lowest", [100])
    ids = np.concatenate([ids, np.arange(20)])
    rows = np.arange(len(ids), dtype=np.int32)
    index.fill(tf.constant(ids[:10]), tf.constant(rows[:10]))
    index.insert(tf.constant(ids[10:]), tf.constant(rows[10:]))
    index.write_versions(tf.constant([7], tf.int64))
    found, versions = index.look_up(tf.constant(ids))
    np.testing.assert_array_equal(found, rows)
    assert versions.numpy().tolist() == [7]
    index.remove(tf.constant(ids[1::2]))
    rows[1::2] = -1
    found, versions = index.look_up(tf.constant(ids))
    np.testing.assert_array_equal(found, rows)
    assert versions.numpy().tolist() == [7]
    index.free()

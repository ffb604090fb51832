"""Tests of rows of batches."""

import tensorflow as tf

from tfps_plugin.inputs import batch_rows

_BATCH = {
    "dense": tf.reshape(tf.range(6), [3, 2]),
    "ragged": tf.ragged.constant([[1], [2, 3], []]),
    "sparse": tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]]),
    "scalar": tf.constant(5),
    "none": None,
}


def test_every_part_that_is_no_scalar_has_rows() -> None:
    sizes = batch_rows.sizes(_BATCH)
    assert [int(size) for size in sizes] == [3, 3, 3]
    assert {size.dtype for size in sizes} == {tf.int64}
    assert batch_rows.sizes((tf.constant(1), None)) == []


def test_rows_of_each_part_are_taken() -> None:
    begin, end = (tf.constant(n, tf.int64) for n in (1, 3))
    taken = batch_rows.between(_BATCH, begin, end)
    assert taken["dense"].numpy().tolist() == [[2, 3], [4, 5]]
    assert taken["ragged"].to_list() == [[2, 3], []]
    assert tf.sparse.to_dense(taken["sparse"]).numpy().tolist() == [
        [0, 2],
        [3, 0],
    ]
    assert taken["scalar"] is _BATCH["scalar"]
    assert taken["none"] is None

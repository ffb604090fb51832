"""Private TensorFlow API behind tf.nn's lookups and tf.gather.

The public functions, for any kind of ids, end in two private ones: replacing
those serves all of them in one place.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# All of tf.nn.embedding_lookup, embedding_lookup_sparse and
# safe_embedding_lookup_sparse, for any kind of ids, end in two functions here.
from tensorflow.python.ops import embedding_ops

# TensorFlow's handler of tf.gather for ragged ids.
from tensorflow.python.ops.ragged import ragged_gather_ops

# From (params, ids) to (rows, positions of the ids among the rows), or to None
# where TensorFlow shall do as it does.
DistinctRowsOf = Callable[[Any, Any], tuple[tf.Tensor, tf.Tensor] | None]


def look_up_distinct_rows(distinct_rows_of: DistinctRowsOf) -> None:
    """Has tf.nn's lookups work on the rows they need, in place of a table.

    Args:
        distinct_rows_of: Looks up the distinct rows, and says where each id's
            row is among them.
    """
    dense = embedding_ops._embedding_lookup_and_transform
    sparse = embedding_ops.embedding_lookup_sparse_impl

    @functools.wraps(dense)
    def embedding_lookup(
        params: Any, ids: Any, *args: Any, **kwargs: Any
    ) -> Any:
        found = distinct_rows_of(_only(params), ids)
        if found is None:
            return dense(params, ids, *args, **kwargs)
        rows_UD, positions = found
        return dense(rows_UD, positions, *args, **kwargs)

    @functools.wraps(sparse)
    def embedding_lookup_sparse(
        params: Any,
        segment_ids: Any,
        sp_weights: Any,
        ids: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        found = distinct_rows_of(_only(params), ids)
        if found is None:
            return sparse(params, segment_ids, sp_weights, ids, *args, **kwargs)
        rows_UD, positions = found
        return sparse(
            [rows_UD], segment_ids, sp_weights, positions, *args, **kwargs
        )

    embedding_ops._embedding_lookup_and_transform = embedding_lookup
    embedding_ops.embedding_lookup_sparse_impl = embedding_lookup_sparse


def _only(params: Any) -> Any:
    if isinstance(params, list | tuple) and len(params) == 1:
        return params[0]
    return params


def gather_ragged_by(look_up: Callable[[Any, Any], tf.Tensor | None]) -> None:
    """Has `tf.gather` of rows by ragged ids look up rows.

    Args:
        look_up: From (params, flat ids) to rows, or to None where TensorFlow
            shall do as it does.
    """
    original = ragged_gather_ops.gather

    @functools.wraps(original)
    def gather(
        params: Any,
        indices: Any,
        validate_indices: Any = None,
        axis: Any = None,
        batch_dims: Any = 0,
        name: Any = None,
    ) -> Any:
        of_rows = batch_dims == 0 and (axis is None or _is_zero(axis))
        if of_rows and isinstance(indices, tf.RaggedTensor):
            rows = look_up(params, indices.flat_values)
            if rows is not None:
                return indices.with_flat_values(rows)
        return original(
            params, indices, validate_indices, axis, batch_dims, name
        )

    tf.experimental.unregister_dispatch_for(original)
    tf.experimental.dispatch_for_api(tf.gather)(gather)


def _is_zero(axis: Any) -> bool:
    return tf.get_static_value(tf.convert_to_tensor(axis)) == 0

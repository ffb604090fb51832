"""Row lookups of Keras and TensorFlow that never read a whole table.

TensorFlow's lookups work just as well with only the needed rows and the
positions of the ids among them. So each lookup here first fetches these rows
with `row_lookup`, and then runs the original code.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import keras_lora
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.lookup.table import looked_up_table


def embedding_lookup(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the `tf.nn.embedding_lookup` that works on rows."""

    @functools.wraps(original)
    def look_up(params: Any, ids: Any, *args: Any, **kwargs: Any) -> Any:
        found = _distinct_rows_of(_only(params), ids)
        if found is None:
            return original(params, ids, *args, **kwargs)
        rows_UD, positions = found
        return original(rows_UD, positions, *args, **kwargs)

    return look_up


def embedding_lookup_sparse(
    original: Callable[..., Any],
) -> Callable[..., Any]:
    """Returns the `tf.nn.embedding_lookup_sparse` that works on rows."""

    @functools.wraps(original)
    def look_up(
        params: Any,
        segment_ids: Any,
        sp_weights: Any,
        ids: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        found = _distinct_rows_of(_only(params), ids)
        if found is not None:
            rows_UD, ids = found
            params = [rows_UD]
        return original(params, segment_ids, sp_weights, ids, *args, **kwargs)

    return look_up


def ragged_gather(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the `tf.gather` by ragged ids that looks up rows."""

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
            found = _distinct_rows_of(params, indices.flat_values)
            if found is not None:
                return indices.with_flat_values(tf.gather(*found))
        return original(
            params, indices, validate_indices, axis, batch_dims, name
        )

    return gather


def _only(params: Any) -> Any:
    if isinstance(params, list | tuple) and len(params) == 1:
        return params[0]
    return params


def _is_zero(axis: Any) -> bool:
    return tf.get_static_value(tf.convert_to_tensor(axis)) == 0


def _distinct_rows_of(
    params: Any, ids: Any
) -> tuple[tf.Tensor, tf.Tensor] | None:
    if tensorflow_saving.is_saving_model() and _is_ours(params):
        # TensorFlow's lookups do not take a keras.Variable.
        return tf.convert_to_tensor(params), ids
    found = looked_up_table(params)
    if found is None:
        return None
    table, of_rows = found
    rows_UD, positions = row_lookup.distinct_rows(table, ids)
    return of_rows(rows_UD), positions


def take(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the `keras.ops.take` that looks up rows."""

    @functools.wraps(original)
    def take_rows(x: Any, indices: Any, axis: int | None = None) -> Any:
        found = looked_up_table(x)
        if found is None or axis is None or not _is_first(axis, x):
            return original(x, indices, axis)
        table, of_rows = found
        return _at_ids(
            indices,
            lambda ids: of_rows(row_lookup.look_up(table, ids, from_end=True)),
        )

    return take_rows


def embedding_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an `Embedding.call` that adds LoRA to rows, not to tables."""

    @functools.wraps(original)
    def call(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        table = keras_lora.table_with_lora(self)
        if table is None or not _is_ours(table):
            return original(self, inputs, *args, **kwargs)
        return _at_ids(inputs, functools.partial(_rows_with_lora, self, table))

    return call


def _rows_with_lora(layer: Any, table: Any, ids: tf.Tensor) -> tf.Tensor:
    """Returns rows of `table + scale * a @ b`, without computing all of it."""
    # Flattens ids: with two axes, gradients of matmul have static shapes.
    ids_N = tf.reshape(ids, [-1])
    if ids.dtype not in (tf.int32, tf.int64):
        ids_N = tf.cast(ids_N, tf.int32)
    rows_ND = keras.ops.take(table, ids_N, axis=0)
    delta_ND = tf.matmul(
        keras.ops.take(layer.lora_embeddings_a, ids_N, axis=0),
        keras.ops.convert_to_tensor(layer.lora_embeddings_b),
    )
    dtype = keras.backend.result_type(
        table.dtype, layer.lora_embeddings_b.dtype
    )
    scale = layer.lora_alpha / layer.lora_rank
    rows = tf.reshape(
        tf.cast(rows_ND, dtype) + tf.cast(scale * delta_ND, dtype),
        tf.concat([tf.shape(ids), [layer.output_dim]], 0),
    )
    rows.set_shape(ids.shape.concatenate(layer.output_dim))
    return keras.ops.cast(rows, layer.compute_dtype)


def _at_ids(indices: Any, rows_of: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """Returns rows for dense, ragged or sparse ids, as Keras does.

    Args:
        indices: Row numbers.
        rows_of: Maps a tensor of row numbers to their rows.

    Returns:
        A ragged tensor for ragged ids, else a dense one. As in Keras, missing
        ids of a sparse tensor count as 0.
    """
    if isinstance(indices, tf.RaggedTensor):
        return indices.with_flat_values(rows_of(indices.flat_values))
    if isinstance(indices, tf.SparseTensor):
        shape = indices.shape
        indices = tf.sparse.to_dense(indices, validate_indices=False)
        indices.set_shape(shape)
    return rows_of(keras.ops.convert_to_tensor(indices))


def _is_ours(params: Any) -> bool:
    return isinstance(keras_compat.value_of(params, params), Table)


def _is_first(axis: int, x: Any) -> bool:
    return axis in (0, -len(x.shape))

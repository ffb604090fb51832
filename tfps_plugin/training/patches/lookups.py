"""Row lookups of Keras and TensorFlow, so that none reads a whole table.

What TensorFlow does with the rows of a table it can do as well with only the
rows that are needed and the places of the ids among them. So each lookup here
first fetches those, by `row_lookup`, and then goes its own way.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import tensorflow_lookups
from tfps_plugin._compat import tensorflow_loops
from tfps_plugin._compat import tensorflow_saving
from tfps_plugin._compat import tensorflow_vectorizing
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.row_lookup import Table


def install() -> None:
    """Puts the lookups below in their places."""
    keras_compat.set_take(_take(keras_compat.get_take()))
    embedding = keras.layers.Embedding
    embedding.call = _embedding_call(embedding.call)
    tensorflow_lookups.look_up_distinct_rows(_distinct_rows_of)
    tensorflow_lookups.gather_ragged_by(_gather_rows)
    tensorflow_loops.use_no_rows_in_branches()
    tensorflow_vectorizing.install()


def _distinct_rows_of(
    params: Any, ids: Any
) -> tuple[tf.Tensor, tf.Tensor] | None:
    if tensorflow_saving.is_saving_model() and _is_ours(params):
        # TensorFlow's lookups do not take a keras.Variable.
        return tf.convert_to_tensor(params), ids
    found = row_lookup.table_behind(params)
    if found is None:
        return None
    table, of_rows = found
    rows_UD, positions = row_lookup.distinct_rows(table, ids)
    return of_rows(rows_UD), positions


def _gather_rows(params: Any, ids: Any) -> tf.Tensor | None:
    found = _distinct_rows_of(params, ids)
    return None if found is None else tf.gather(*found)


def _take(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def take(x: Any, indices: Any, axis: int | None = None) -> Any:
        found = row_lookup.table_behind(x)
        if found is None or axis is None or not _is_first(axis, x):
            return original(x, indices, axis)
        table, of_rows = found
        return _at_ids(
            indices,
            lambda ids: of_rows(row_lookup.look_up(table, ids, from_end=True)),
        )

    return take


def _embedding_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Quantized, the layer has a call of its own, which is right as it is.
        if (
            not self.lora_enabled
            or self.quantization_mode is not None
            or not _is_ours(self._embeddings)
        ):
            return original(self, inputs, *args, **kwargs)
        return _at_ids(inputs, functools.partial(_rows_with_lora, self))

    return call


def _rows_with_lora(layer: Any, ids: tf.Tensor) -> tf.Tensor:
    """Rows of `table + scale * a @ b`, which nobody needs as a whole."""
    # Flat, because a matrix product of two axes knows its gradients' shapes.
    ids_N = tf.reshape(ids, [-1])
    if ids.dtype not in (tf.int32, tf.int64):
        ids_N = tf.cast(ids_N, tf.int32)
    rows_ND = keras.ops.take(layer._embeddings, ids_N, axis=0)
    delta_ND = tf.matmul(
        keras.ops.take(layer.lora_embeddings_a, ids_N, axis=0),
        keras.ops.convert_to_tensor(layer.lora_embeddings_b),
    )
    dtype = keras.backend.result_type(
        layer._embeddings.dtype, layer.lora_embeddings_b.dtype
    )
    scale = layer.lora_alpha / layer.lora_rank
    rows = tf.reshape(
        tf.cast(rows_ND, dtype) + tf.cast(scale * delta_ND, dtype),
        tf.concat([tf.shape(ids), [layer.output_dim]], 0),
    )
    rows.set_shape(ids.shape.concatenate(layer.output_dim))
    return keras.ops.cast(rows, layer.compute_dtype)


def _at_ids(indices: Any, rows_of: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """Rows for dense, ragged or sparse ids, as Keras gives them.

    Args:
        indices: Row numbers.
        rows_of: From a tensor of row numbers to their rows.

    Returns:
        A ragged tensor for ragged ids, else a dense one. As in Keras, what is
        missing in a sparse tensor is row 0.
    """
    if isinstance(indices, tf.RaggedTensor):
        return indices.with_flat_values(rows_of(indices.flat_values))
    if isinstance(indices, tf.SparseTensor):
        shape = indices.shape
        indices = tf.sparse.to_dense(indices, validate_indices=False)
        indices.set_shape(shape)
    return rows_of(keras.ops.convert_to_tensor(indices))


def _is_ours(params: Any) -> bool:
    return isinstance(getattr(params, "_value", params), Table)


def _is_first(axis: int, x: Any) -> bool:
    return axis in (0, -len(x.shape))

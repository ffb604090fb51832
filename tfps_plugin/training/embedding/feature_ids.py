"""Ids of one feature, and the combination of their rows.

Shape legend: B examples, L ids in each, N ids in total, D numbers in a row.

Results are those of `keras_rs.layers.EmbedReduce`: ids of shape (B,) are not
reduced; others are reduced over the ids of each example, and an example
without ids gets zeros.
"""

import abc
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.embedding.config import FeatureConfig
from tfps_plugin.variables.lookup import graph_checks


class FeatureIds(abc.ABC):
    """The ids of one feature; combines the rows that were looked up for them.

    Attributes:
        ids_N: All ids in one row.
    """

    ids_N: tf.Tensor

    @abc.abstractmethod
    def combine(self, rows_ND: tf.Tensor, combiner: str) -> tf.Tensor:
        """Reduces the rows of each example to one, shape `(B, D)`.

        Args:
            rows_ND: A row for each id.
            combiner: "mean", "sum" or "sqrtn".
        """


class SingleIds(FeatureIds):
    """One id in each example: N equals B."""

    def __init__(self, ids_B: tf.Tensor, weights_B: tf.Tensor | None) -> None:
        """Takes ids of shape `(B,)` and weights of the same, if any."""
        self.ids_N = ids_B
        self._weights_B = weights_B

    def combine(self, rows_ND: tf.Tensor, combiner: str) -> tf.Tensor:
        """See `FeatureIds.combine`; only "sum" uses the weights."""
        rows_ND.set_shape([self.ids_N.shape[0], rows_ND.shape[1]])
        if self._weights_B is None or combiner != "sum":
            # The mean of one row is that row, whatever its weight.
            return rows_ND
        return rows_ND * tf.cast(self._weights_B, rows_ND.dtype)[:, None]


class DenseIds(FeatureIds):
    """The same number of ids in each example."""

    def __init__(self, ids_BL: tf.Tensor, weights_BL: tf.Tensor | None) -> None:
        """Takes ids of shape `(B, L)` and weights of the same, if any.

        Examples may have several axes: B is then all of their sizes.
        """
        self.ids_N = tf.reshape(ids_BL, [-1])
        self._static_shape = ids_BL.shape
        self._shape = tf.shape(ids_BL)
        self._weights_BL = weights_BL

    def combine(self, rows_ND: tf.Tensor, combiner: str) -> tf.Tensor:
        *batch, length = self._static_shape
        width = rows_ND.shape[1]
        weights = self._weights_BL
        if length == 1 and weights is None and len(batch) == 1:
            # One row stays as it is, whatever the combiner.
            rows_ND.set_shape([*batch, width])
            return rows_ND
        rows_BLD = tf.reshape(rows_ND, tf.concat([self._shape, [width]], 0))
        rows_BLD.set_shape([*batch, length, width])
        if weights is None:
            count = tf.cast(self._shape[-1], rows_ND.dtype)
            return _divide(tf.reduce_sum(rows_BLD, -2), count, count, combiner)
        weights_BL1 = tf.cast(weights, rows_ND.dtype)[..., None]
        return _divide(
            tf.reduce_sum(rows_BLD * weights_BL1, -2),
            tf.reduce_sum(weights_BL1, -2),
            tf.reduce_sum(tf.square(weights_BL1), -2),
            combiner,
        )


class SegmentedIds(FeatureIds):
    """Any number of ids in each example: ragged or sparse input."""

    def __init__(
        self,
        ids_N: tf.Tensor,
        examples_N: tf.Tensor,
        num_examples: tf.Tensor,
        batch: int | None,
        weights_N: tf.Tensor | None,
        reduced: bool = True,
    ) -> None:
        """Takes ids in the order of their examples.

        Args:
            ids_N: The ids.
            examples_N: Number of the example that each id belongs to.
            num_examples: B, as a scalar tensor.
            batch: B, if it is known statically.
            weights_N: Weights of the ids, if any.
            reduced: Whether an example may have several ids.
        """
        self.ids_N = ids_N
        self._examples_N = examples_N
        self._num_examples = num_examples
        self._batch = batch
        self._weights_N = weights_N
        self._reduced = reduced

    def combine(self, rows_ND: tf.Tensor, combiner: str) -> tf.Tensor:
        if not self._reduced:
            # At most one row: combines it as "sum" does, and weights only
            # count for "sum".
            weights = self._weights_N if combiner == "sum" else None
            combiner = "sum"
        else:
            weights = self._weights_N
        if weights is None:
            weights_N1 = tf.ones_like(self.ids_N, rows_ND.dtype)[:, None]
        else:
            weights_N1 = tf.cast(weights, rows_ND.dtype)[:, None]
            rows_ND = rows_ND * weights_N1
        combined = _divide(
            self._sum(rows_ND),
            None if combiner != "mean" else self._sum(weights_N1),
            None if combiner != "sqrtn" else self._sum(tf.square(weights_N1)),
            combiner,
        )
        combined.set_shape([self._batch, rows_ND.shape[1]])
        return combined

    def _sum(self, values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(
            values, self._examples_N, self._num_examples
        )


def _divide(
    sums_BD: tf.Tensor,
    weights: tf.Tensor | None,
    squares: tf.Tensor | None,
    combiner: str,
) -> tf.Tensor:
    """Completes a combiner from weighted sums; without ids it gives zeros."""
    if combiner == "mean":
        return tf.math.divide_no_nan(sums_BD, weights)
    if combiner == "sqrtn":
        return tf.math.divide_no_nan(sums_BD, tf.sqrt(squares))
    return sums_BD


def feature_ids(
    feature: FeatureConfig, inputs: Any, weights: Any
) -> FeatureIds:
    """Creates the `FeatureIds` of a feature's input.

    Args:
        feature: The feature.
        inputs: Its ids: a dense, ragged or sparse tensor of rank 1 or 2.
        weights: Weights of the ids, of the same kind and shape; or None.

    Returns:
        Its `FeatureIds`.

    Raises:
        errors.InputError: If ids or weights do not match the feature's
            configuration or this description.
    """
    _require_integers(feature, inputs)
    require_shape(feature, inputs.shape, isinstance(inputs, tf.Tensor))
    if not isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
        inputs = tf.convert_to_tensor(inputs)
        if inputs.shape.rank is None:
            # A shape that is only known during the call is checked then.
            inputs = tf.ensure_shape(inputs, [None] * len(feature.input_shape))
    return any_ids(f"feature {feature.name!r}", inputs, weights)


def any_ids(owner: str, inputs: Any, weights: Any) -> FeatureIds:
    """Creates the `FeatureIds` of ids whose shape no configuration tells.

    Args:
        owner: The layer or feature, for messages.
        inputs: Ids: a ragged or sparse tensor of rank 1 or 2, or a dense one
            of rank 1 or more.
        weights: Weights of the ids, of the same kind and shape; or None.

    Returns:
        Their `FeatureIds`.

    Raises:
        errors.InputError: If the weights do not match the ids.
    """
    if weights is not None:
        _require_alike(owner, inputs, weights)
    if isinstance(inputs, tf.RaggedTensor):
        return _of_ragged(owner, inputs, weights)
    if isinstance(inputs, tf.SparseTensor):
        return _of_sparse(owner, inputs, weights)
    ids = _integers(inputs)
    if weights is not None:
        weights = graph_checks.gated_by_equality(
            weights, tf.shape(weights), tf.shape(ids), _unlike(owner, "shape")
        )
        weights.set_shape(ids.shape)
    kind = SingleIds if ids.shape.rank == 1 else DenseIds
    return kind(ids, weights)


def require_shape(feature: FeatureConfig, shape: Any, dense: bool) -> None:
    """Refuses an input whose shape does not fit the feature.

    Args:
        feature: The feature.
        shape: Shape of its input, as far as it is known.
        dense: Whether the input is dense. Others may have any number of ids.

    Raises:
        errors.InputError: If the shape does not fit.
    """
    if isinstance(shape, tf.TensorShape) and shape.rank is None:
        return
    shape = tuple(shape)
    expected = feature.input_shape
    # A single id in each example may have its own axis or not.
    is_one_id = len(shape) == 1 and expected[1:] == (1,)
    fits = len(shape) == len(expected) and (
        len(expected) == 1
        or not dense
        or None in (shape[1], expected[1])
        or shape[1] == expected[1]
    )
    if not fits and not is_one_id:
        raise errors.InputError(
            f"The feature {feature.name!r} is expected to have the shape "
            f"{expected}, with any batch size, as its `input_shape` says. "
            f"Received: shape={shape}"
        )


def _require_integers(feature: FeatureConfig, inputs: Any) -> None:
    dtype = tf.as_dtype(inputs.dtype)
    if not (dtype.is_integer or dtype.is_floating):
        raise errors.InputError(
            f"The feature {feature.name!r} is expected to have integer ids. "
            f"Received: dtype={dtype.name}. Strings can be made ids by "
            "keras.layers.StringLookup or keras.layers.Hashing, or looked up "
            "in a table with vocabulary_size=None."
        )


def _require_alike(owner: str, inputs: Any, weights: Any) -> None:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    alike = [isinstance(inputs, k) == isinstance(weights, k) for k in kinds]
    if not all(alike) or not weights.shape.is_compatible_with(inputs.shape):
        raise errors.InputError(
            f"The weights of the {owner} are expected to be "
            "of the same kind and shape as its ids: "
            f"{type(inputs).__name__} of shape {inputs.shape}. Received: "
            f"{type(weights).__name__} of shape {weights.shape}"
        )


def _of_ragged(owner: str, ids: tf.RaggedTensor, weights: Any) -> SegmentedIds:
    weights_N = None
    if weights is not None:
        weights_N = weights.values
        if weights.row_splits is not ids.row_splits:
            weights_N = graph_checks.gated_by_equality(
                weights_N,
                tf.cast(weights.row_splits, tf.int64),
                tf.cast(ids.row_splits, tf.int64),
                _unlike(owner, "rows"),
            )
    return SegmentedIds(
        _integers(ids.values),
        ids.value_rowids(),
        ids.nrows(),
        ids.shape[0],
        weights_N,
    )


def _of_sparse(owner: str, ids: tf.SparseTensor, weights: Any) -> SegmentedIds:
    weights_N = None
    if weights is not None:
        weights_N = weights.values
        if weights.indices is not ids.indices:
            weights_N = graph_checks.gated_by_equality(
                weights_N,
                weights.indices,
                ids.indices,
                _unlike(owner, "indices"),
            )
    return SegmentedIds(
        _integers(ids.values),
        ids.indices[:, 0],
        ids.dense_shape[0],
        ids.shape[0],
        weights_N,
        reduced=ids.shape.rank == 2,
    )


def _integers(ids: tf.Tensor) -> tf.Tensor:
    """Casts ids to a dtype of lookups, as `keras.layers.Embedding` does."""
    return ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)


def _unlike(owner: str, what: str) -> str:
    return (
        f"The weights of the {owner} are expected to have the "
        f"{what} of its ids. Received: {what} of weights and ids ="
    )

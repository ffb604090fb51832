"""Batches of a worker, split over its replicas.

Shape legend: R replicas.
"""

import itertools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.inputs import batch_rows
from tfps_plugin.strategy.replicas import per_replica
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.strategy.replicas.per_replica import PerReplicaSpec
from tfps_plugin.variables.lookup import graph_checks

_ADVICE = (
    "Give every part of a batch one row for each example, or train with "
    "replicas_per_worker=1."
)


def split(batch: Any, num_replicas: int) -> Any:
    """Splits a batch into shares of about as many examples each.

    Args:
        batch: A nested structure of tensors, ragged and sparse ones too, with
            the examples along their first axis.
        num_replicas: Number of shares, R.

    Returns:
        A structure like `batch`, of `PerReplica`. Scalars, and leaves that are
        no tensors, stay as they are. If there are fewer examples than replicas,
        the others get the first example, and none of its rows counts.

    Raises:
        InputError: If parts are known to have different numbers of rows. If
            that comes out when the function runs, it is a
            `tf.errors.InvalidArgumentError`.
    """
    _require_same_static_sizes(batch)
    with tf.device(graph_checks.CPU):
        sizes = batch_rows.sizes(batch)
        if not sizes:
            return batch
        number = sizes[0]
        for other in sizes[1:]:
            number = graph_checks.gated_by_equality(
                number,
                number,
                other,
                "A batch is split over the replicas of a worker, and its parts "
                f"have different numbers of rows. {_ADVICE} Received: rows =",
            )
        num_rows, ranges = _ranges(number, num_replicas)
        shares = [batch_rows.between(batch, *each) for each in ranges]

    def join(whole: Any, *parts: Any) -> Any:
        is_scalar = isinstance(whole, tf.Tensor) and whole.shape.rank == 0
        if not tf.is_tensor(whole) or is_scalar:
            return whole
        return PerReplica(parts, num_rows)

    return tf.nest.map_structure(join, batch, *shares)


def split_unchecked(
    parts: Sequence[tf.Tensor], num_replicas: int
) -> list[list[tf.Tensor]]:
    """Splits dense parts of a batch as `split` does, without its checks.

    Args:
        parts: The parts. If they have different numbers of rows, the shares
            have no meaning.
        num_replicas: Number of shares, R.

    Returns:
        The R shares of each part.
    """
    with tf.device(graph_checks.CPU):
        number = tf.shape(parts[0], tf.int64)[0]
        _, ranges = _ranges(number, num_replicas)
        return [[part[begin:end] for begin, end in ranges] for part in parts]


def whole(structure: Any) -> Any:
    """Returns a structure with the rows of all replicas as one tensor.

    Those of replicas without examples are left out.

    Args:
        structure: A nested structure; what is no `PerReplica` stays as it is.
    """

    def join(value: PerReplica) -> Any:
        parts = list(value.values)
        if value.num_examples is not None:
            parts = [
                _rows_if(part, number > 0)
                for part, number in zip(parts, value.num_examples, strict=True)
            ]
        if isinstance(parts[0], tf.SparseTensor):
            return tf.sparse.concat(0, parts)
        if parts[0].shape.rank == 0:
            return parts[0]
        return tf.concat(parts, 0)

    with tf.device(graph_checks.CPU):
        return per_replica.map_values(join, structure)


def _ranges(
    number: tf.Tensor, num_replicas: int
) -> tuple[list[tf.Tensor], list[tuple[tf.Tensor, tf.Tensor]]]:
    """Returns the numbers of examples of shares, and their first and last rows.

    Args:
        number: Number of examples, an int64 scalar.
        num_replicas: Number of shares.
    """
    # The first ones get one more.
    bounds = [
        number // num_replicas * index
        + tf.minimum(number % num_replicas, index)
        for index in range(num_replicas + 1)
    ]
    num_rows = [end - begin for begin, end in itertools.pairwise(bounds)]
    ranges = [
        (
            tf.where(rows > 0, begin, 0),
            tf.where(rows > 0, begin + rows, tf.minimum(number, 1)),
        )
        for begin, rows in zip(bounds[:-1], num_rows, strict=True)
    ]
    return num_rows, ranges


def _rows_if(part: Any, is_present: tf.Tensor) -> Any:
    """Returns all rows of a part, or none."""
    begin = tf.constant(0, tf.int64)
    sizes = batch_rows.sizes(part)
    if not sizes:
        return part
    return batch_rows.between(part, begin, tf.where(is_present, sizes[0], 0))


def whole_dataset(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a dataset of batches that are not split.

    Args:
        dataset: A dataset, of split batches or not.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    if not any(isinstance(spec, PerReplicaSpec) for spec in specs):
        return dataset
    return of_elements(dataset, whole)


def split_dataset(
    dataset: tf.data.Dataset, num_replicas: int
) -> tf.data.Dataset:
    """Returns a dataset of batches that are split.

    Args:
        dataset: A dataset of batches.
        num_replicas: Number of shares of each, R.
    """
    return of_elements(dataset, lambda batch: split(batch, num_replicas))


def of_elements(
    dataset: tf.data.Dataset, function: Callable[[Any], Any]
) -> tf.data.Dataset:
    """Returns a dataset of what a function makes of each element.

    Args:
        dataset: A dataset.
        function: A function of one argument, also for elements that are tuples.
    """
    is_tuple = isinstance(dataset.element_spec, tuple)
    return dataset.map(lambda *batch: function(batch if is_tuple else batch[0]))


def _require_same_static_sizes(batch: Any) -> None:
    sizes = {
        part.shape[0]
        for part in tf.nest.flatten(batch)
        if tf.is_tensor(part) and part.shape.rank and part.shape[0] is not None
    }
    if len(sizes) > 1:
        raise errors.InputError(
            "A batch is split over the replicas of a worker along the first "
            "axis of its parts. Expected parts with one row for each example. "
            f"Received: parts of {sorted(sizes)} rows. {_ADVICE}"
        )

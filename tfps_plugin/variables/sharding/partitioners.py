"""Partitioners, which choose the number of shards of a variable.

These are the three partitioners of `tf.distribute.experimental.partitioners`,
with the same arguments and the same results. A partitioner is any callable
`(shape, dtype) -> [number of parts along each axis]`. It may have an argument
`axis`, which is 0.
"""

import inspect
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import TypeAlias

from tfps_plugin import errors

Partitioner: TypeAlias = Callable[..., Sequence[int]]


class FixedShardsPartitioner:
    """Cuts every variable into the same number of shards.

    A variable with fewer rows than that gets one shard per row.
    """

    def __init__(self, num_shards: int) -> None:
        """Creates the partitioner.

        Args:
            num_shards: Number of shards.

        Raises:
            PartitioningError: If it is not a positive integer.
        """
        _require_positive("num_shards", num_shards)
        self._num_shards = num_shards

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of parts along each axis of `shape`."""
        dimensions = _dimensions(shape)
        return _parts(dimensions, axis, min(self._num_shards, dimensions[axis]))


class MinSizePartitioner:
    """Cuts into as many shards as possible, each of about a minimum size."""

    def __init__(
        self,
        min_shard_bytes: int = 256 << 10,
        max_shards: int = 1,
        bytes_per_string: int = 16,
    ) -> None:
        """Creates the partitioner.

        Args:
            min_shard_bytes: Size that a shard is cut down to, in bytes.
            max_shards: Upper bound of the number of shards.
            bytes_per_string: Size that a string counts for, in bytes.

        Raises:
            PartitioningError: If one of them is not a positive integer.
        """
        _require_positive("min_shard_bytes", min_shard_bytes)
        _require_positive("max_shards", max_shards)
        _require_positive("bytes_per_string", bytes_per_string)
        self._min_shard_bytes = min_shard_bytes
        self._max_shards = max_shards
        self._bytes_per_string = bytes_per_string

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of parts along each axis of `shape`."""
        dimensions = _dimensions(shape)
        total = math.prod(dimensions) * _item_bytes(
            dtype, self._bytes_per_string
        )
        # Rounded up, as TensorFlow does: the last shard may be smaller.
        shards = max(1, math.ceil(total / self._min_shard_bytes))
        shards = min(shards, self._max_shards, dimensions[axis])
        return _parts(dimensions, axis, shards)


class MaxSizePartitioner:
    """Cuts into as few shards as possible, each of at most a maximum size."""

    def __init__(
        self,
        max_shard_bytes: int,
        max_shards: int | None = None,
        bytes_per_string: int = 16,
    ) -> None:
        """Creates the partitioner.

        Args:
            max_shard_bytes: Largest size of a shard, in bytes. A single row
                is never cut, and `max_shards` wins over it.
            max_shards: Upper bound of the number of shards; None for no bound.
            bytes_per_string: Size that a string counts for, in bytes.

        Raises:
            PartitioningError: If one of them is not a positive integer.
        """
        _require_positive("max_shard_bytes", max_shard_bytes)
        if max_shards is not None:
            _require_positive("max_shards", max_shards)
        _require_positive("bytes_per_string", bytes_per_string)
        self._max_shard_bytes = max_shard_bytes
        self._max_shards = max_shards
        self._bytes_per_string = bytes_per_string

    def __call__(self, shape: Any, dtype: Any, axis: int = 0) -> list[int]:
        """Returns the number of parts along each axis of `shape`."""
        dimensions = _dimensions(shape)
        row_bytes = (
            math.prod(dimensions)
            // dimensions[axis]
            * _item_bytes(dtype, self._bytes_per_string)
        )
        rows_per_shard = max(1, self._max_shard_bytes // max(1, row_bytes))
        shards = math.ceil(dimensions[axis] / rows_per_shard)
        if self._max_shards is not None:
            shards = min(shards, self._max_shards)
        return _parts(dimensions, axis, shards)


def num_shards(
    partitioner: Partitioner | None, shape: Any, dtype: Any, name: str
) -> int:
    """Asks `partitioner` and checks its answer.

    Args:
        partitioner: Any callable of the protocol; None never cuts.
        shape: The variable's full shape.
        dtype: The variable's dtype.
        name: The variable's name, for the error.

    Returns:
        Number of shards along the first axis, at least 1 and at most the
        number of rows. Scalars and empty variables are never cut.

    Raises:
        PartitioningError: If the answer is not one number per axis, or asks
            for parts along another axis than the first.
    """
    dimensions = _dimensions(shape)
    if partitioner is None or not dimensions or 0 in dimensions:
        return 1
    # As TensorFlow asks: `axis` is for partitioners that insist on it.
    axis = {"axis": 0} if _needs_axis(partitioner) else {}
    answer = partitioner(shape=shape, dtype=dtype, **axis)
    try:
        parts = [int(part) for part in answer]
    except (TypeError, ValueError):
        parts = []
    where = (
        f"variable_partitioner cannot cut the variable {name!r} of shape "
        f"{tuple(dimensions)}: "
    )
    if len(parts) != len(dimensions) or any(part < 1 for part in parts):
        raise errors.PartitioningError(
            f"{where}it must return one positive number of parts for each of "
            f"the {len(dimensions)} axes. Received: {answer!r}"
        )
    if any(part > 1 for part in parts[1:]):
        raise errors.PartitioningError(
            f"{where}only the first axis can be cut, into shards of whole "
            f"rows, so all other numbers must be 1. Received: {answer!r}. "
            "Return the number of shards first, e.g. [2, 1]."
        )
    return min(parts[0], dimensions[0])


def _needs_axis(partitioner: Partitioner) -> bool:
    try:
        axis = inspect.signature(partitioner).parameters.get("axis")
    except (TypeError, ValueError):
        return False  # No signature to read, as with some builtins.
    return axis is not None and axis.default is axis.empty


def _dimensions(shape: Any) -> list[int]:
    as_list = getattr(shape, "as_list", None)
    return [int(d) for d in (as_list() if as_list else shape)]


def _item_bytes(dtype: Any, bytes_per_string: int) -> int:
    if getattr(dtype, "name", str(dtype)) == "string":
        return bytes_per_string
    size = getattr(dtype, "size", None)
    if size is None:
        size = dtype.itemsize
    return int(size)


def _parts(dimensions: list[int], axis: int, shards: int) -> list[int]:
    parts = [1] * len(dimensions)
    parts[axis] = int(shards)
    return parts


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise errors.PartitioningError(
            f"{name} must be a positive integer. Received: {name}={value!r}"
        )

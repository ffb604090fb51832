"""Sums, means and extremes of the results of a function, one by one."""

from collections.abc import Callable
from typing import Any
from typing import Literal

import numpy as np
import tensorflow as tf

Op = Literal["sum", "mean", "max", "min"]
_NOTHING = object()


class Reduction:
    """Combines results in the order in which they are added.

    Sums and means of floating-point numbers are made in float64, and rounded
    once at the end; sums of integers are made in 64 bits.

    Threading: one thread uses it.
    """

    def __init__(self, op: Op | Callable[[Any, Any], Any]) -> None:
        """Begins without results.

        Args:
            op: "sum", "mean", "max" or "min", of each number; or a function of
                two results that returns one.

        Raises:
            ValueError: If it is something else.
        """
        self._function = op if callable(op) else None
        if self._function is None and op not in _COMBINE:
            raise ValueError(
                "coordinator.reduce() combines results by op. Expected one of "
                f"{', '.join(map(repr, _COMBINE))}, or a function of two "
                f"results. Received: op={op!r}. For anything else, pass a "
                "function that returns one result for two."
            )
        self._op = op
        self._total: Any = _NOTHING
        self._dtypes: list[np.dtype[Any]] = []
        self._weight = 0.0

    def add(self, result: Any, weight: float = 1.0) -> None:
        """Adds a result.

        Args:
            result: A nested structure of arrays or numbers. All results have
                the same structure and shapes.
            weight: Weight of the result, for "mean".

        Raises:
            TypeError: If it has a part that is no number.
            ValueError: If it is not like those before, or the weight is
                negative or not a number.
            OverflowError: If a sum of integers does not fit in 64 bits.
        """
        if self._function is not None:
            self._total = (
                result
                if self._total is _NOTHING
                else self._function(self._total, result)
            )
            return
        if not 0 <= weight < np.inf:
            raise ValueError(
                "coordinator.reduce() weighs results for a mean. Expected "
                f"numbers of at least 0. Received: weight={weight!r}. Let the "
                "function of weight= return such numbers."
            )
        leaves = [_as_numbers(leaf) for leaf in tf.nest.flatten(result)]
        self._weight += weight
        values = [_wide(leaf) for leaf in leaves]
        if self._op == "mean":
            # The mean of no examples is not a number, and counts nothing.
            values = [
                each.astype(np.float64) * weight
                if weight
                else np.zeros(each.shape)
                for each in values
            ]
        if self._total is _NOTHING:
            self._dtypes = [leaf.dtype for leaf in leaves]
            self._total = tf.nest.pack_sequence_as(result, values)
            return
        _require_alike(self._total, result, values)
        self._total = tf.nest.pack_sequence_as(
            result,
            [
                _COMBINE[self._op](total, value)
                for total, value in zip(
                    tf.nest.flatten(self._total), values, strict=True
                )
            ],
        )

    def result(self) -> Any:
        """Returns what all results are together.

        Returns:
            Of the structure and shapes of a result. "sum", "max" and "min" keep
            floating dtypes, "sum" makes 64-bit numbers of integers, and "mean"
            float64 numbers.

        Raises:
            ValueError: If there is no result, or all weights are zero.
        """
        if self._total is _NOTHING:
            raise ValueError(
                "coordinator.reduce() has nothing to combine. Expected at "
                "least one item. Received: number of items=0. See whether "
                "items is an iterator that was read before, or empty here."
            )
        if self._function is not None:
            return self._total
        if self._op == "mean" and not self._weight:
            raise ValueError(
                "coordinator.reduce() has no mean of results without weight. "
                "Expected an item that has examples. Received: sum of "
                "weights=0. Leave out slices that are empty, or pass weight=."
            )

        def finished(leaf: np.ndarray, dtype: np.dtype[Any]) -> Any:
            if self._op == "mean":
                leaf = leaf / self._weight
            if dtype.kind not in "biu" or self._op in ("max", "min"):
                leaf = leaf.astype(dtype)
            return leaf[()]

        return tf.nest.pack_sequence_as(
            self._total,
            [
                finished(leaf, dtype)
                for leaf, dtype in zip(
                    tf.nest.flatten(self._total), self._dtypes, strict=True
                )
            ],
        )


def _as_numbers(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise TypeError(
            "coordinator.reduce() cannot combine a part of a result. Expected "
            "arrays of real numbers. Received: "
            f"type={type(leaf).__name__}, dtype={array.dtype}. Pass a "
            "function of two results as op."
        )
    return array


def _wide(array: np.ndarray) -> np.ndarray:
    """Returns numbers in a dtype in which they can be added up."""
    if array.dtype.kind == "u":
        return array.astype(np.uint64)
    if array.dtype.kind in "bi":
        return array.astype(np.int64)
    return array.astype(np.float64)


def _sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        total = np.asarray(a + b)
    if total.dtype.kind == "i":
        overflows = ((a ^ total) & (b ^ total)) < 0
    elif total.dtype.kind == "u":
        overflows = total < a
    else:
        return total
    if np.any(overflows):
        raise OverflowError(
            "coordinator.reduce() has a sum of integers that does not fit in "
            "64 bits. Expected results of smaller numbers. Received: "
            f"dtype={total.dtype}. Return them as float64."
        )
    return total


def _require_alike(total: Any, result: Any, values: list[np.ndarray]) -> None:
    try:
        tf.nest.assert_same_structure(total, result)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "coordinator.reduce() cannot combine results of different "
            f"structure. Expected that of the first, {_shapes(total)}. "
            f"Received: structure={_shapes(result)}. Let the function return "
            "the same keys and lengths for each item, or pass a function of "
            "two results as op."
        ) from error
    for before, value in zip(tf.nest.flatten(total), values, strict=True):
        if before.shape != value.shape or before.dtype != value.dtype:
            raise ValueError(
                "coordinator.reduce() combines results of the same shapes "
                f"and kinds of numbers. Expected shape {before.shape} of "
                f"{before.dtype}, as in the first. Received: "
                f"shape={value.shape}, dtype={value.dtype}. Let the function "
                "reduce the axis whose size differs, or pass a function of "
                "two results as op."
            )


def _shapes(structure: Any) -> Any:
    """Returns the shape of each part of a result, for messages."""
    return tf.nest.map_structure(np.shape, structure)


_COMBINE: dict[Any, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "sum": _sum,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
}

"""The scatter methods of `tf.Variable`, for all kinds of variables."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables.step_trace import StepTrace

_ROWS_ARGUMENTS = """
    sparse_delta: A `tf.IndexedSlices`: values, by the numbers of their rows.
    use_locking: As in `tf.Variable`, which ignores it.
    name: Name of the operation.
"""
_PLACES_ARGUMENTS = """
    indices: Places of elements or slices, as in `tf.scatter_nd`.
    updates: A value for each place.
    name: Name of the operation.
"""


def _rows_method(method: str, summary: str) -> Callable[..., Any]:
    """Makes a method that changes single rows.

    Args:
        method: Name of the method of `tf.Variable`.
        summary: What it does, as its docstring begins.
    """

    def change(
        self: "ScatterMethods",
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        _require_slices(method, sparse_delta)
        refuse_in_update(self, method)
        return self._scatter(method, sparse_delta, use_locking, name)

    return _named(change, method, summary, _ROWS_ARGUMENTS)


def _places_method(method: str, summary: str) -> Callable[..., Any]:
    """Makes a method that changes single elements or slices; see above."""

    def change(
        self: "ScatterMethods",
        indices: Any,
        updates: Any,
        name: str | None = None,
    ) -> Any:
        refuse_in_update(self, method)
        return self._scatter_nd(method, indices, updates, name)

    return _named(change, method, summary, _PLACES_ARGUMENTS)


def _named(
    change: Callable[..., Any], method: str, summary: str, arguments: str
) -> Callable[..., Any]:
    change.__name__ = method
    change.__qualname__ = f"ScatterMethods.{method}"
    change.__doc__ = (
        f"{summary}, as a resource variable does.\n\nArgs:{arguments}\n"
        "Returns:\n    The variable, or the operation that changes it.\n"
    )
    return change


class ScatterMethods:
    """Every scatter method, in terms of two that a subclass defines."""

    def _scatter(
        self,
        method: str,
        rows: tf.IndexedSlices,
        use_locking: bool,
        name: str | None,
    ) -> Any:
        """Changes single rows.

        Args:
            method: Name of the method of `tf.Variable`.
            rows: Values, by the numbers of their rows.
            use_locking: As in `tf.Variable`, which ignores it.
            name: Name of the operation.
        """
        raise NotImplementedError  # every subclass has its own

    def _scatter_nd(
        self, method: str, indices: Any, updates: Any, name: str | None
    ) -> Any:
        """Changes single elements or slices.

        Args:
            method: Name of the method of `tf.Variable`.
            indices: Coordinates, shape `(..., K)`.
            updates: Values, one for each coordinate.
            name: Name of the operation.
        """
        raise NotImplementedError  # every subclass has its own

    scatter_add = _rows_method("scatter_add", "Adds to single rows")
    scatter_sub = _rows_method("scatter_sub", "Subtracts from single rows")
    scatter_mul = _rows_method("scatter_mul", "Multiplies single rows")
    scatter_div = _rows_method("scatter_div", "Divides single rows")
    scatter_max = _rows_method("scatter_max", "Keeps the larger elements")
    scatter_min = _rows_method("scatter_min", "Keeps the smaller elements")
    scatter_update = _rows_method("scatter_update", "Assigns single rows")

    def batch_scatter_update(
        self,
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        """Assigns along the last axis of the indices, batch by batch.

        As in `tf.Variable.batch_scatter_update`, the axes before the last one
        of `sparse_delta.indices` are those of the variable.
        """
        _require_slices("batch_scatter_update", sparse_delta)
        indices = tf.convert_to_tensor(sparse_delta.indices)
        if indices.shape.rank == 1:
            return self.scatter_update(sparse_delta, use_locking, name)
        return self.scatter_nd_update(
            _with_batch_coordinates(indices), sparse_delta.values, name
        )

    scatter_nd_add = _places_method("scatter_nd_add", "Adds to places")
    scatter_nd_sub = _places_method("scatter_nd_sub", "Subtracts from places")
    scatter_nd_update = _places_method("scatter_nd_update", "Assigns places")
    scatter_nd_max = _places_method(
        "scatter_nd_max", "Keeps the larger elements"
    )
    scatter_nd_min = _places_method(
        "scatter_nd_min", "Keeps the smaller elements"
    )


def refuse_in_update(variable: Any, method: str) -> None:
    """Refuses a method that would change rows outside of an update's view.

    Raises:
        UnsupportedError: If this thread sees only some rows of the variable, or
            traces a step that workers or replicas make together.
    """
    # A variable of the workers has no home.
    if StepTrace.current().exchange is not None and getattr(
        variable, "_home", True
    ):
        raise errors.UnsupportedError(
            "A step of several workers or replicas changes a part of "
            f"{variable.name!r} by {method}, and each would do so by itself. "
            "Expected assign, assign_add or assign_sub of the whole variable. "
            f"Received: {method}. Train with consistency=tfps.Async() and "
            "replicas_per_worker=1, or make the variable trainable and apply a "
            "gradient."
        )
    if StepTrace.current().view_of(variable._unique_id) is not None:
        raise errors.UnsupportedError(
            f"{method} on {variable.name!r} inside an optimizer's update: "
            "the update already sees single rows only. Use assign, assign_add "
            "or assign_sub with a value of the gradient's shape."
        )


def _with_batch_coordinates(indices: tf.Tensor) -> tf.Tensor:
    """Adds the batch coordinates to indices along the last axis."""
    sizes = tf.unstack(tf.shape(indices), indices.shape.rank)
    *batch, _ = tf.meshgrid(*map(tf.range, sizes), indexing="ij")
    return tf.stack(
        [*(tf.cast(each, indices.dtype) for each in batch), indices], -1
    )


def _require_slices(method: str, rows: Any) -> None:
    if not isinstance(rows, tf.IndexedSlices):
        raise TypeError(
            f"{method}() takes rows by their numbers; expected a "
            f"tf.IndexedSlices(values, indices). Received: sparse_delta={rows}"
        )

"""The scatter methods of `tf.Variable`, for all kinds of variables."""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.variables.step_trace import StepTrace


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

    def scatter_add(
        self,
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        """Adds to single rows, as `tf.Variable.scatter_add`."""
        return self._scatter_rows(
            "scatter_add", sparse_delta, use_locking, name
        )

    def scatter_sub(
        self,
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        """Subtracts from single rows, as `tf.Variable.scatter_sub`."""
        return self._scatter_rows(
            "scatter_sub", sparse_delta, use_locking, name
        )

    def scatter_mul(
        self,
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        """Multiplies single rows, as `tf.Variable.scatter_mul`."""
        return self._scatter_rows(
            "scatter_mul", sparse_delta, use_locking, name
        )

    def scatter_div(
        self,
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        """Divides single rows, as `tf.Variable.scatter_div`."""
        return self._scatter_rows(
            "scatter_div", sparse_delta, use_locking, name
        )

    def scatter_max(
        self,
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        """Keeps the larger elements, as `tf.Variable.scatter_max`."""
        return self._scatter_rows(
            "scatter_max", sparse_delta, use_locking, name
        )

    def scatter_min(
        self,
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        """Keeps the smaller elements, as `tf.Variable.scatter_min`."""
        return self._scatter_rows(
            "scatter_min", sparse_delta, use_locking, name
        )

    def scatter_update(
        self,
        sparse_delta: tf.IndexedSlices,
        use_locking: bool = False,
        name: str | None = None,
    ) -> Any:
        """Assigns single rows, as `tf.Variable.scatter_update`."""
        return self._scatter_rows(
            "scatter_update", sparse_delta, use_locking, name
        )

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

    def scatter_nd_add(
        self, indices: Any, updates: Any, name: str | None = None
    ) -> Any:
        """Adds to places, as `tf.Variable.scatter_nd_add`."""
        return self._scatter_places("scatter_nd_add", indices, updates, name)

    def scatter_nd_sub(
        self, indices: Any, updates: Any, name: str | None = None
    ) -> Any:
        """Subtracts from places, as `tf.Variable.scatter_nd_sub`."""
        return self._scatter_places("scatter_nd_sub", indices, updates, name)

    def scatter_nd_update(
        self, indices: Any, updates: Any, name: str | None = None
    ) -> Any:
        """Assigns places, as `tf.Variable.scatter_nd_update`."""
        return self._scatter_places("scatter_nd_update", indices, updates, name)

    def scatter_nd_max(
        self, indices: Any, updates: Any, name: str | None = None
    ) -> Any:
        """Keeps the larger elements, as a resource variable does."""
        return self._scatter_places("scatter_nd_max", indices, updates, name)

    def scatter_nd_min(
        self, indices: Any, updates: Any, name: str | None = None
    ) -> Any:
        """Keeps the smaller elements, as a resource variable does."""
        return self._scatter_places("scatter_nd_min", indices, updates, name)

    def _scatter_rows(
        self,
        method: str,
        rows: Any,
        use_locking: bool,
        name: str | None,
    ) -> Any:
        _require_slices(method, rows)
        refuse_in_update(self, method)
        return self._scatter(method, rows, use_locking, name)

    def _scatter_places(
        self, method: str, indices: Any, updates: Any, name: str | None
    ) -> Any:
        refuse_in_update(self, method)
        return self._scatter_nd(method, indices, updates, name)


def refuse_in_update(variable: Any, method: str) -> None:
    """Refuses a method that would change rows outside of an update's view.

    Raises:
        UnsupportedError: If this thread sees only some rows of the variable.
    """
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

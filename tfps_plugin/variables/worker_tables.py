"""Lookup tables, such as those of `StringLookup`: one copy per worker.

A table of the chief would make every lookup of every worker a call to the
chief. Tables are read-only after initialization, so each worker builds its
own when it first needs it.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.cluster import dispatch_context
from tfps_plugin.cluster.dispatch_context import DispatchContext
from tfps_plugin.variables.worker_resident import WorkerResident


class WorkerTable(tf.lookup.StaticHashTable):
    """A `tf.lookup.StaticHashTable` of which every worker has a copy.

    On the chief's own threads it is an ordinary table of the chief.

    Made while a function is traced, it may be given tensors of that function.
    The function itself then fills the table of the worker that it runs on;
    TensorFlow has that do nothing where the table is filled already.
    """

    def __init__(
        self, initializer: Any, default_value: Any, **options: Any
    ) -> None:
        """As `tf.lookup.StaticHashTable`.

        Args:
            initializer: Fills the table; asked again on every worker.
            default_value: Value of keys that are not in the table.
            **options: Passed on to the chief's own table.
        """
        self._resident: WorkerResident[tf.lookup.StaticHashTable] = (
            WorkerResident(self._build_copy, per_lane=False)
        )
        self._make_copy = (
            _copies(initializer, default_value)
            if compat.function_graph() is None
            else _copies(_FilledByFunction(initializer), None)
        )
        super().__init__(initializer, default_value, **options)

    @property
    def _default_value(self) -> tf.Tensor:
        # A tensor of the chief would be sent along with every call.
        if compat.function_graph() is None or not hasattr(
            self._default_tensor, "numpy"
        ):
            return self._default_tensor
        return tf.constant(self._default_tensor.numpy())

    @_default_value.setter
    def _default_value(self, value: tf.Tensor) -> None:
        self._default_tensor = value

    def _build_copy(
        self, context: DispatchContext
    ) -> tf.lookup.StaticHashTable:
        with tf.init_scope(), tf.device(context.cpu_device):
            return self._make_copy()

    def _handle_now(self) -> tf.Tensor:
        if dispatch_context.current() is None:
            return super().resource_handle
        return self._resident.get().resource_handle

    @property
    def resource_handle(self) -> tf.Tensor:
        """The handle of the table where the current function will run."""
        graph = compat.function_graph()
        if graph is None:
            return self._handle_now()
        return compat.capture_at_call_time(
            graph,
            self._handle_now,
            compat.LateBoundHandleSpec(super().resource_handle),
            key=("tfps-table", id(self)),
        )


class _FilledByFunction:
    """Stands in for an initializer whose tensors exist in a function only."""

    # What StaticHashTable asks of an initializer; it finds its own name.
    _shared_name = ""

    def __init__(self, initializer: Any) -> None:
        self.key_dtype = initializer.key_dtype
        self.value_dtype = initializer.value_dtype

    def initialize(self, table: tf.lookup.StaticHashTable) -> None:
        """Leaves the table empty."""


def _copies(
    initializer: Any, default_value: Any
) -> Callable[[], tf.lookup.StaticHashTable]:
    """What makes a worker's copy, on the current device."""

    def make() -> tf.lookup.StaticHashTable:
        return tf.lookup.StaticHashTable(
            initializer,
            # Lookups go through the WorkerTable, which has its own default.
            tf.zeros([], initializer.value_dtype)
            if default_value is None
            else default_value,
            # Freed with its last handle, instead of with its worker.
            experimental_is_anonymous=True,
        )

    return make

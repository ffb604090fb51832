"""Lookup tables, such as those of `StringLookup`: one copy per worker.

If the table were only on the chief, every lookup of every worker would call the
chief. Tables are read-only after initialization, so each worker builds its own
when it first needs it, with the content of the chief's table. So no worker
needs the vocabulary file, or a layer that was made outside the strategy's
scope.
"""

import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_tables
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.per_worker.worker_resident import WorkerResident

_lock = threading.Lock()


class TableCopies:
    """The workers' copies of one table of the chief.

    Threading: used by any thread.
    """

    def __init__(
        self,
        chief_handle: Callable[[], tf.Tensor],
        key_dtype: tf.DType,
        value_dtype: tf.DType,
    ) -> None:
        """Describes the copies; none is made yet.

        Args:
            chief_handle: Returns the handle of the chief's own table.
            key_dtype: Dtype of its keys.
            value_dtype: Dtype of its values.
        """
        self._chief_handle = chief_handle
        self._key_dtype = key_dtype
        self._value_dtype = value_dtype
        self.resident: WorkerResident[tf.lookup.StaticHashTable] = (
            WorkerResident(self._build, per_lane=False)
        )

    def _build(self, context: DispatchContext) -> tf.lookup.StaticHashTable:
        with tf.init_scope(), tf.device(context.cpu_device):
            return tf.lookup.StaticHashTable(
                _ContentOf(
                    self._chief_handle(), self._key_dtype, self._value_dtype
                ),
                # Each lookup passes its own default.
                tf.zeros([], self._value_dtype),
                # Freed with its last handle, instead of with its worker.
                experimental_is_anonymous=True,
            )

    def handle_now(self) -> tf.Tensor:
        """Returns the table's handle for operations of this thread."""
        if dispatch_context.current() is None:
            return self._chief_handle()
        return self.resident.get().resource_handle

    def handle_in(self, graph: Any) -> tf.Tensor:
        """Returns the table's handle for a function, where it will run."""
        return compat.capture_at_call_time(
            graph,
            self.handle_now,
            compat.LateBoundHandleSpec(self._chief_handle()),
            key=("tfps-table", id(self)),
        )


class WorkerTable(tf.lookup.StaticHashTable):
    """A `tf.lookup.StaticHashTable` of which every worker has a copy.

    On the chief's own threads it is an ordinary table of the chief.

    If it is made while a function is traced, its arguments may be tensors of
    that function. The function itself then fills the table of the worker that
    it runs on; if the table is filled already, this does nothing.
    """

    def __init__(
        self, initializer: Any, default_value: Any, **options: Any
    ) -> None:
        """Makes the chief's own table, as `tf.lookup.StaticHashTable`.

        Args:
            initializer: Fills the table.
            default_value: Value of keys that are not in the table.
            **options: Passed on to the chief's own table.
        """
        self._copies = TableCopies(
            self._chief_handle, initializer.key_dtype, initializer.value_dtype
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

    def _chief_handle(self) -> tf.Tensor:
        return super().resource_handle

    @property
    def copies(self) -> TableCopies:
        """The copies of the workers."""
        return self._copies

    @property
    def resource_handle(self) -> tf.Tensor:
        """The table's handle where the current function will run."""
        graph = compat.function_graph()
        if graph is None:
            return self._copies.handle_now()
        if tensorflow_saving.is_saving_model():
            return self._chief_handle()
        return self._copies.handle_in(graph)


class _ContentOf:
    """Initializer that fills a table with the content of another.

    If the other is not filled yet, the table stays empty, too: a function that
    makes a table fills it itself, wherever it runs.
    """

    # StaticHashTable reads this from an initializer; it makes its own name.
    _shared_name = ""

    def __init__(
        self, handle: tf.Tensor, key_dtype: tf.DType, value_dtype: tf.DType
    ) -> None:
        self._handle = handle
        self.key_dtype = key_dtype
        self.value_dtype = value_dtype

    def initialize(self, table: tf.lookup.StaticHashTable) -> None:
        """Fills the table, once."""
        try:
            with tf.device(self._handle.device):
                keys, values = tf.raw_ops.LookupTableExportV2(
                    table_handle=self._handle,
                    Tkeys=self.key_dtype,
                    Tvalues=self.value_dtype,
                )
        except tf.errors.AbortedError as error:
            if "not initialized" not in error.message:
                raise
            return
        tf.raw_ops.LookupTableImportV2(
            table_handle=table.resource_handle, keys=keys, values=values
        )


def copies_of(handle: tf.Tensor, table: Any) -> TableCopies:
    """Returns the workers' copies of any static table.

    Args:
        handle: The handle of the chief's table.
        table: A `WorkerTable`, or a table that was made without a strategy,
            by the program or by `tf.saved_model.load`.
    """
    if isinstance(table, WorkerTable):
        return table.copies
    with _lock:
        copies: TableCopies | None = getattr(table, "_tfps_copies", None)
        if copies is None:
            copies = TableCopies(
                lambda: handle, *tensorflow_tables.dtypes_of(table)
            )
            table._tfps_copies = copies
        return copies

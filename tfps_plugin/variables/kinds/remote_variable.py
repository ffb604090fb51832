"""A whole variable on one parameter server."""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_tables
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.chief.chief_reads import on_the_chief
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.kinds.handle_areas import HandleAreas
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.lookup import row_lookup
from tfps_plugin.variables.lookup.table import Table
from tfps_plugin.variables.saving import apart
from tfps_plugin.variables.saving import saved_form
from tfps_plugin.variables.sharding.layout import RowLayout
from tfps_plugin.variables.storage import on_disk


class RemoteVariable(Table, LateBoundVariable):
    """A `tf.Variable` that lives on a parameter server.

    The shards of a `ShardedVariable` are such variables, too.

    Threading: reads and assignments are safe from several threads; each is
    one operation on the ps.
    """

    # Its place on the disk of its ps, an `OnDisk`; None: it is in memory.
    on_disk: Any = None

    # The replaced variable that functions ask for the handle of this one.
    stands_for: Any = None

    def __init__(
        self,
        device: str,
        shape: tf.TensorShape,
        dtype: tf.DType,
        name: str,
        **options: Any,
    ) -> None:
        """Makes the variable on `device`, without a value yet.

        Args:
            device: Full device name of the ps.
            shape: Full static shape.
            dtype: Dtype of the elements.
            name: Name shown to the user.
            **options: As for `LateBoundVariable`.
        """
        connection.present().part(HandleAreas).free_abandoned()
        with tf.device(device):
            super().__init__(shape, dtype, name, **options)
        self._be_known_by_handle()
        self.path = name
        self._family: list[weakref.ref[Any]] = []
        # It may be a shard in the place of another one.
        self.begin_epoch()

    def remake(self) -> None:
        """Makes the resource again; see `LateBoundVariable.remake`."""
        super().remake()
        self._be_known_by_handle()
        self.begin_epoch()

    def adopt(self, copy: "RemoteVariable") -> None:
        """Goes on with the resource of another variable, on another ps.

        Functions that were traced before cannot be called any more.

        Args:
            copy: A variable of the same shape and dtype, which nothing else
                uses.
        """
        self._handle = copy._own
        self.on_disk = copy.on_disk
        self._be_known_by_handle()
        connection.present().part(HandleAreas).handles_have_changed()

    def _be_known_by_handle(self) -> None:
        """Lets functions of SavedModels find it by its handle."""
        tensorflow_tables.set_owner(self.own_handle, self)
        tensorflow_tables.look_up_in_loaded_functions(self.own_handle, self)

    @property
    def _home(self) -> str:
        return self.device

    def _as_received(self, value: tf.Tensor) -> tf.Tensor:
        return wire.received(self, value)

    @property
    def layout(self) -> RowLayout:
        """All rows in one shard, which is this variable."""
        return RowLayout((0, self._shape[0]))

    @property
    def shards(self) -> list["RemoteVariable"]:
        """This variable."""
        return [self]

    @property
    def tape_input(self) -> tf.Tensor:
        """The handle, which gradient tapes watch from now on."""
        compat.variable_accessed(self)
        return self.handle

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        """Looks up rows; see `row_lookup.look_up`."""
        # A scalar has no rows; TensorFlow raises the error.
        if tensorflow_saving.is_saving_model() or self._shape.rank == 0:
            return LateBoundVariable.sparse_read(self, indices, name)
        if self._reads_more_than_own():
            return tf.gather(self.read_value(), indices)
        return row_lookup.look_up(self, indices)

    @contextlib.contextmanager
    def beside_steps(self, given: Any) -> Iterator[Any]:
        """Holds the lock of a table in functions, once `given` has arrived.

        Updates of rows read, compute and write.
        """
        lock = self.update_lock
        if (
            lock is None
            or lock.is_held
            or self._shape.rank < 2
            or compat.function_graph() is None
            or tensorflow_saving.is_saving_model()
        ):
            with super().beside_steps(given):
                yield given
            if on_the_chief():
                self.begin_epoch()
            return
        with tf.device(self.device):
            if isinstance(given, tf.IndexedSlices):
                values, ids = given.values, given.indices
                given = tf.IndexedSlices(
                    tf.identity(tf.convert_to_tensor(values, self.dtype)),
                    tf.identity(tf.convert_to_tensor(ids)),
                )
                arrivals = [given.values, given.indices]
            elif isinstance(given, tuple):
                given = tuple(map(tf.identity, given))
                arrivals = [*given]
            else:
                given = tf.identity(tf.convert_to_tensor(given, self.dtype))
                arrivals = [given]
        unseen = self.unseen_steps
        now = None if unseen is None else unseen.now()
        with lock.holding(arrivals if now is None else [*arrivals, now]):
            if unseen is not None:
                unseen.store(_rows_of(given), now)
            yield given

    def _assign_by(
        self, method: str, value: Any, name: str | None, read_value: bool
    ) -> Any:
        """Assigns; on disk, the program's own assignments only."""
        if self.on_disk is None or self._reads_more_than_own():
            return super()._assign_by(method, value, name, read_value)
        if method == "assign" and compat.function_graph() is None:
            with self.beside_steps(value) as given:
                self._write_in_place(tf.convert_to_tensor(given, self.dtype))
            return self if read_value else None
        raise on_disk.no_whole_assignment(self.path, method)

    def _write_in_place(self, value: tf.Tensor) -> None:
        """Writes all rows, piece by piece, where they are."""
        if value.shape != self._shape:
            raise ValueError(
                f"The variable {self.path!r} can only be assigned values of "
                f"its own shape. Received: shape={tuple(value.shape)}, "
                f"expected={tuple(self._shape)}"
            )
        # Symbolic values have no device; others are cut where they are.
        device = value.device or self.device
        for rows in saved_form.pieces(self, saved_form.SLICE_BYTES):
            with tf.device(device):
                piece = value[rows.start : rows.stop]
            with tf.device(self.device):
                tf.raw_ops.ResourceScatterUpdate(
                    resource=self.own_handle,
                    indices=tf.range(rows.start, rows.stop),
                    updates=tf.identity(piece),
                )

    def _copy_trackable_to_cpu(self, object_map: Any) -> None:
        if self.on_disk is not None and not apart.is_apart():
            raise errors.UnsupportedError(
                f"The variable {self.path!r} is on the disk of its parameter "
                "server; an asynchronous checkpoint would copy it to memory. "
                "Received: enable_async=True. Use BackupAndRestore or "
                "tfps.callbacks instead, or a synchronous checkpoint."
            )
        super()._copy_trackable_to_cpu(object_map)

    def fetch_rows(self, rows: range | np.ndarray) -> np.ndarray:
        """Returns some rows as an array in this process.

        Args:
            rows: Numbers of the rows.
        """

        def read_once() -> np.ndarray:
            with tf.device(self.device):
                if isinstance(rows, np.ndarray):
                    part = tf.raw_ops.ResourceGather(
                        resource=self.own_handle,
                        indices=tf.constant(rows),
                        dtype=self.dtype,
                    )
                elif len(rows) == self._shape[0]:
                    part = compat.read_resource(self.own_handle, self.dtype)
                else:
                    # Once rows have been looked up, a read copies the whole
                    # variable, even if only a slice is needed.
                    part = tf.raw_ops.ResourceGather(
                        resource=self.own_handle,
                        indices=tf.range(rows.start, rows.stop),
                        dtype=self.dtype,
                    )
            return part.numpy()

        return self._read_on_chief(read_once, [len(rows), *self._shape[1:]])

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """Serializes it as TensorFlow's checkpoints do any variable."""
        if apart.is_apart():
            return {tensorflow_saving.VARIABLE_VALUE_KEY: {}}
        if self.on_disk is not None:
            # Whole, it would be copied to memory.
            self.finish_steps()
            slices = saved_form.slices(self, [self], saved_form.SLICE_BYTES)
            return {tensorflow_saving.VARIABLE_VALUE_KEY: slices}
        tensors: dict[str, Any] = super()._serialize_to_tensors()
        return tensors

    def slices_to_restore(self) -> dict[str, Any]:
        """Returns the slices that it wrote; none if it is in memory."""
        if self.on_disk is None or apart.is_apart():
            return {}
        return saved_form.slices(self, [self], None)

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        """Restores it as TensorFlow's checkpoints do any variable."""
        if apart.is_apart():
            return None
        (value,) = restored_tensors.values()
        if self.on_disk is not None:
            self._write_in_place(value)
            done = tf.no_op()
        else:
            done = saved_form.restore_in_place(self, value)
            if done is None:
                done = super()._restore_from_tensors(restored_tensors)
        self.begin_epoch()
        return done

    def join_family(self, slot: Any) -> None:
        """Declares that `slot` is updated row by row with this variable.

        Args:
            slot: A variable of the same shape on the same ps, such as an
                optimizer's moment.
        """
        # Not `in`: variables are compared by their elements.
        if all(known is not slot for known in self.family):
            self._family.append(weakref.ref(slot))

    @property
    def family(self) -> list[Any]:
        """The slots that are updated with this variable and still exist."""
        return [slot for ref in self._family if (slot := ref()) is not None]


def _rows_of(given: Any) -> tf.Tensor | None:
    """Returns the rows that an assignment changes; None for all of them."""
    if isinstance(given, tf.IndexedSlices):
        return given.indices
    if isinstance(given, tuple) and len(given) == 2:
        # Coordinates and values.
        return given[0][..., 0]
    return None

"""Variables on parameter servers: their place, lock and first value."""

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_strategy
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.initial_values.initialization import InitialValue
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.lookup.row_counts import RowCounts
from tfps_plugin.variables.sharding.inventory import Inventory
from tfps_plugin.variables.sharding.layout import RowLayout
from tfps_plugin.variables.sharding.placement import BytePlacement
from tfps_plugin.variables.storage.on_disk import OnDisk
from tfps_plugin.variables.storage.tiered_storage import TieredStorage
from tfps_plugin.variables.updates.update_lock import UpdateLocks


class PsVariables:
    """Variables that the parameter servers of one strategy hold.

    All methods have these arguments: `described` has the shape, dtype and
    initial value of the new variable; `name` is its name; `weight` has its
    keyword arguments: `trainable`, `synchronization`, `aggregation`, or some
    of them. Some methods have `ps`: the index of the parameter server that the
    program has named; None is the one with the fewest bytes.

    Threading: any thread may create variables.

    Attributes:
        devices: The device of each parameter server, in order.
        indices: The index of each parameter server, in the same order.
        inventory: The variables that still exist.
        most_filled_bytes: Size up to which new variables get values; None: any.
            A larger one has no value and takes no memory.
    """

    def __init__(
        self,
        devices: list[str],
        indices: Sequence[int] | None = None,
        *,
        counts_rows: bool = False,
    ) -> None:
        """Starts with empty parameter servers.

        Args:
            devices: The device of each parameter server, in order.
            indices: Their indices; None: 0, 1, ....
            counts_rows: Whether lookups in new tables are counted.
        """
        self._counts_rows = counts_rows
        self.most_filled_bytes: int | None = None
        self.devices = devices
        self.indices = tuple(
            range(len(devices)) if indices is None else indices
        )
        self._placement = BytePlacement(len(devices))
        self._locks = UpdateLocks()
        self.inventory = Inventory(self._locks)

    @property
    def bytes_per_ps(self) -> tuple[int, ...]:
        """Bytes placed on each ps so far."""
        return self._placement.bytes_per_ps

    def whole(
        self,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
        ps: int | None = None,
        storage: TieredStorage | None = None,
    ) -> RemoteVariable:
        """Creates a variable on one ps.

        Args:
            storage: Where its rows are kept; None: in memory.
        """
        device = self._device_for(described.num_bytes, ps)
        place = _on_disk(storage, described)
        variable = self._filled(device, described, name, weight, place)
        variable.is_placed_by_hand = ps is not None
        self._count_rows(variable)
        return variable

    def unfilled(
        self,
        shape: tf.TensorShape,
        dtype: tf.DType,
        name: str,
        weight: dict[str, Any],
        ps: int | None = None,
    ) -> RemoteVariable:
        """Creates a variable without a value; `shape` is fully defined."""
        num_bytes = initialization.num_bytes(shape, dtype)
        device = self._device_for(num_bytes, ps)
        variable = self._registered(device, shape, dtype, name, weight)
        variable.is_placed_by_hand = ps is not None
        return variable

    def mirrored(
        self,
        beside: Any,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
        ps: int | None = None,
    ) -> MirroredScalar:
        """Creates a scalar of which the workers keep copies.

        Args:
            beside: The variable that it belongs to; None: no variable. It goes
                beside another mirrored scalar, otherwise to `ps`.
        """
        if isinstance(beside, MirroredScalar):
            # A step reads both, and from one ps they travel together.
            device = beside.device
            self._count(device, described.num_bytes)
        else:
            device = self._device_for(described.num_bytes, ps)
        variable = MirroredScalar(device, described.dtype, name, **weight)
        variable.is_placed_by_hand = ps is not None
        if isinstance(beside, MirroredScalar):
            variable.beside = weakref.ref(beside)
        self.inventory.add(variable)
        with compat.clear_device():
            initialization.fill(variable, described)
        return variable

    def sharded(
        self,
        described: InitialValue,
        num_shards: int,
        name: str,
        weight: dict[str, Any],
        rows_per_block: int = 1,
        storage: TieredStorage | None = None,
    ) -> ShardedVariable:
        """Creates a variable in shards of about as many rows each.

        Args:
            num_shards: Number of shards. They are on different ps as long as
                there are any.
            rows_per_block: Rows that stay together in one shard.
            storage: Where its rows are kept; None: in memory.
        """
        num_rows = described.shape[0]
        num_shards = min(num_shards, num_rows // rows_per_block)
        layout = RowLayout.even(num_rows, num_shards, rows_per_block)
        row_bytes = described.num_bytes // layout.num_rows
        ps_of_shards = self._placement.place_all(
            [len(layout.rows(i)) * row_bytes for i in range(num_shards)]
        )
        devices = [self.devices[ps] for ps in ps_of_shards]
        places = [_on_disk(storage, described) for _ in devices]
        table = self._filled_shards(
            devices, layout, described, name, weight, places
        )
        table.rows_per_block = rows_per_block
        self._count_rows(table)
        return table

    def slot_of_shards(
        self,
        table: ShardedVariable,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
    ) -> ShardedVariable:
        """Creates a slot of a sharded variable, cut like it, shard by shard."""
        devices = [shard.device for shard in table.variables]
        row_bytes = described.num_bytes // table.layout.num_rows
        for index, device in enumerate(devices):
            self._count(device, len(table.layout.rows(index)) * row_bytes)
        slot = self._filled_shards(
            devices,
            table.layout,
            described,
            name,
            weight,
            [_like(shard.on_disk) for shard in table.variables],
        )
        for shard, of_slot in zip(table.variables, slot.variables, strict=True):
            share_lock(shard, of_slot)
        slot.beside = weakref.ref(table)
        table.join_family(slot)
        return slot

    def beside(
        self,
        variable: Any,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
    ) -> RemoteVariable:
        """Creates a slot on the ps of the variable that it belongs to."""
        self._count(variable.device, described.num_bytes)
        place = None
        if described.shape[:1] == variable.shape[:1] and (
            variable.shape.rank != 0
        ):
            place = _like(variable.on_disk)
        slot = self._filled(variable.device, described, name, weight, place)
        slot.beside = weakref.ref(variable)
        share_lock(variable, slot)
        if isinstance(variable, RemoteVariable) and (
            slot.shape == variable.shape
        ):
            variable.join_family(slot)
        return slot

    def without_value(
        self, like: RemoteVariable, num_rows: int | None, device: str, name: str
    ) -> RemoteVariable:
        """Creates a variable in the place of others, not yet listed.

        Args:
            like: The variable, or a shard of the same table.
            num_rows: Number of its rows; None: it has the shape of `like`.
            device: Device of its ps.
            name: Its name.
        """
        shape = like.shape
        if num_rows is not None:
            shape = tf.TensorShape([num_rows]).concatenate(shape[1:])
        with tf.init_scope(), compat.clear_device():
            made = RemoteVariable(
                device,
                shape,
                like.dtype,
                name,
                trainable=like.trainable,
                synchronization=like.synchronization,
                aggregation=like.aggregation,
            )
        made.on_disk = _like(like.on_disk)
        made.wire_dtype = like.wire_dtype
        tensorflow_strategy.set_strategy(
            made, tensorflow_strategy.strategy_of(like)
        )
        return made

    def new_lock(self, variable: RemoteVariable) -> None:
        """Gives a variable a lock of the ps that it is on now."""
        variable.update_lock = self._locks.for_variable(
            variable.device,
            initialization.num_bytes(variable.shape, variable.dtype),
        )

    def go_on_with(self, devices: list[str], indices: Sequence[int]) -> None:
        """Places variables on other parameter servers from now on.

        Args:
            devices: The device of each of them, in order.
            indices: Their indices.
        """
        for device in {*devices} - {*self.devices}:
            # It may be another process of one that there was before.
            self._locks.forget(device)
        placement = BytePlacement(len(devices))
        for index, device in enumerate(devices):
            for each in self.inventory.on([device]):
                placement.add(
                    index,
                    initialization.num_bytes(each.shape, each.dtype),
                )
        self._placement = placement
        self.devices = devices
        self.indices = tuple(indices)

    def _count_rows(self, variable: Any) -> None:
        """Lets lookups be counted, if that is wanted."""
        if self._counts_rows and variable.shape.rank > 1:
            variable.row_counts = RowCounts(len(variable.shards))

    def _device_for(self, num_bytes: int, ps: int | None) -> str:
        """Returns the device for some bytes, and counts them."""
        if ps is None:
            place = self._placement.place(num_bytes)
        else:
            place = self.indices.index(ps)
            self._placement.add(place, num_bytes)
        return self.devices[place]

    def _filled(
        self,
        device: str,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
        place: OnDisk | None = None,
    ) -> RemoteVariable:
        variable = self._registered(
            device, described.shape, described.dtype, name, weight
        )
        variable.on_disk = place
        if self._is_filled(described):
            with compat.clear_device():
                initialization.fill(variable, described)
        return variable

    def _is_filled(self, described: InitialValue) -> bool:
        """Returns whether a new variable gets its value."""
        most = self.most_filled_bytes
        return most is None or described.num_bytes <= most

    def _registered(
        self,
        device: str,
        shape: tf.TensorShape,
        dtype: tf.DType,
        name: str,
        weight: dict[str, Any],
    ) -> RemoteVariable:
        variable = RemoteVariable(device, shape, dtype, name, **weight)
        self.inventory.add(variable)
        variable.update_lock = self._locks.for_variable(
            device, initialization.num_bytes(shape, dtype)
        )
        return variable

    def _filled_shards(
        self,
        devices: list[str],
        layout: RowLayout,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
        places: Sequence[OnDisk | None],
    ) -> ShardedVariable:
        row_shape = described.shape[1:]
        shards = [
            self._registered(
                device,
                tf.TensorShape([len(layout.rows(i))]).concatenate(row_shape),
                described.dtype,
                f"{name}/part_{i}",
                weight,
            )
            for i, device in enumerate(devices)
        ]
        for shard, place in zip(shards, places, strict=True):
            shard.on_disk = place
        if self._is_filled(described):
            with compat.clear_device():
                initialization.fill_shards(shards, layout, described, name)
        return ShardedVariable(shards, layout, name, **weight)

    def _count(self, device: str, num_bytes: int) -> None:
        if device in self.devices:
            self._placement.add(self.devices.index(device), num_bytes)


def share_lock(variable: Any, slot: RemoteVariable) -> None:
    """Gives a slot the lock of its variable.

    An update of the variable changes the slot, too. Because there are fewer
    locks than variables, taking a second lock could deadlock two updates.
    """
    lock = getattr(variable, "update_lock", None)
    if lock is not None:
        slot.update_lock = lock


def _on_disk(
    storage: TieredStorage | None, described: InitialValue
) -> OnDisk | None:
    """Returns the place of a variable on disk; None: it is in memory."""
    if storage is None or not described.shape.rank:
        return None
    num_rows = described.shape[0]
    if storage.memory_rows >= num_rows:
        return None
    return OnDisk(storage, num_rows)


def _like(place: OnDisk | None) -> OnDisk | None:
    return None if place is None else place.like()

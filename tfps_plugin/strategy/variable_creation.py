"""Where a new variable goes, and in what shape."""

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat import tensorflow_strategy
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.cluster.chief import connection
from tfps_plugin.strategy import legacy_keras
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.initial_values.initialization import InitialValue
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.per_worker.per_worker_variable import (
    PerWorkerVariable,
)
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_seeds import WorkerLocalSeed
from tfps_plugin.variables.sharding import partitioners
from tfps_plugin.variables.sharding.inventory import Inventory
from tfps_plugin.variables.sharding.layout import RowLayout
from tfps_plugin.variables.sharding.placement import BytePlacement
from tfps_plugin.variables.updates.update_lock import UpdateLocks

_logger = logging.getLogger(__name__)

_WEIGHT_KEYWORDS = ("trainable", "synchronization", "aggregation")


class VariableCreator:
    """Makes every variable that is created under the strategy's scope.

    - What is asked for with `per_worker_variable=True`, each worker has for
      itself.
    - A step counter or learning rate becomes a mirrored scalar.
    - A metric state (`synchronization=ON_READ`) and the state of a seed
      generator become worker-local copies.
    - A slot goes beside the variable it belongs to, cut in the same way.
    - What the partitioner cuts becomes a `ShardedVariable`.
    - Anything else goes whole to the ps that holds the fewest bytes.

    Threading: variables may be created from several threads.

    Attributes:
        inventory: What was made and still exists.
    """

    def __init__(
        self,
        ps_devices: list[str],
        variable_partitioner: partitioners.Partitioner | None,
        wire_dtype_of: Callable[[str], tf.DType | None] = lambda path: None,
        num_workers: int = 0,
    ) -> None:
        """Creates the creator.

        Args:
            ps_devices: Device of each parameter server, in order.
            variable_partitioner: Cuts variables; None never does.
            wire_dtype_of: From the path of a trainable variable, what it
                travels as; None: as it is.
            num_workers: How many workers the cluster has.
        """
        self._ps_devices = ps_devices
        self._partitioner = variable_partitioner
        self._wire_dtype_of = wire_dtype_of
        self._num_workers = num_workers
        self._placement = BytePlacement(len(ps_devices))
        self._locks = UpdateLocks()
        self._connection = connection.present()
        self.inventory = Inventory(self._locks)

    @property
    def bytes_per_ps(self) -> tuple[int, ...]:
        """Bytes placed on each ps so far."""
        return self._placement.bytes_per_ps

    def create(self, **kwargs: Any) -> Any:
        """Makes one variable from the arguments of `tf.Variable`.

        Raises:
            StrategySupersededError: If the strategy's connection has ended.
            UnsupportedError: If Keras 2 asks for it.
        """
        self._connection.require()
        legacy_keras.refuse(_name(kwargs))
        if compat.function_graph() is not None:
            return self._create_outside_of_function(kwargs)
        try:
            variable = self._create(kwargs)
        except tf.errors.ResourceExhaustedError as error:
            self._note_memory(error, kwargs)
            raise
        path = keras_compat.path_behind(kwargs.get("initial_value"))
        variable.path = path or _name(kwargs)
        wire_dtype = None
        if variable.trainable and variable.dtype.is_floating:
            wire_dtype = self._wire_dtype_of(variable.path)
        # How extended.variable_created_in_scope() knows its own.
        for part in (variable, *getattr(variable, "variables", ())):
            part.wire_dtype = wire_dtype
            tensorflow_strategy.set_strategy(
                part, kwargs.get("distribute_strategy")
            )
        return variable

    def _create(self, kwargs: dict[str, Any]) -> Any:
        initial_value = kwargs.get("initial_value")
        name = _name(kwargs)
        weight = {
            key: kwargs[key]
            for key in _WEIGHT_KEYWORDS
            if kwargs.get(key) is not None
        }
        if kwargs.get("per_worker_variable"):
            return self._create_per_worker(kwargs, name)
        if initial_value is None:
            return self._create_without_value(kwargs, name, weight)
        on_read = weight.get("synchronization") == (
            tf.VariableSynchronization.ON_READ
        )
        if on_read or keras_compat.is_seed_state(initial_value, name):
            return self._create_worker_local(kwargs, name, on_read)
        described = initialization.describe(
            initial_value, kwargs.get("dtype"), kwargs.get("shape")
        )
        if kwargs.get("constraint") is not None:
            raise errors.VariableCreationError(
                f"The variable {name!r} cannot have a constraint: projections "
                "of asynchronously updated values are not safe. Received: "
                f"constraint={kwargs['constraint']!r}. Use a Keras constraint "
                "on the layer instead."
            )
        beside = kwargs.get("colocate_with")
        if _is_read_by_every_step(described, weight):
            return self._create_mirrored(beside, described, name, weight)
        if isinstance(beside, ShardedVariable) and (
            described.shape[:1] == beside._shape[:1]
        ):
            return self._create_slot_of_shards(beside, described, name, weight)
        if beside is not None:
            return self._create_beside(beside, described, name, weight)
        num_shards = partitioners.num_shards(
            self._partitioner, described.shape, described.dtype, name
        )
        if num_shards > 1:
            return self._create_shards(described, num_shards, name, weight)
        ps = self._placement.place(described.num_bytes)
        return self._create_whole(self._ps_devices[ps], described, name, weight)

    def _note_memory(self, error: Exception, kwargs: dict[str, Any]) -> None:
        """Says below an error which ps has no memory for a variable."""
        for index, device in enumerate(self._ps_devices):
            if device in str(error):
                error.add_note(
                    f"There is no room for the variable {_name(kwargs)!r} on "
                    f"parameter server {index}. With it, it would hold "
                    f"{self.inventory.describe(device)}. What to do: give it "
                    "more memory, cut tables into more shards "
                    "(variable_partitioner), or use more parameter servers."
                )

    def _create_outside_of_function(self, kwargs: dict[str, Any]) -> Any:
        initial_value = kwargs["initial_value"]
        if not callable(initial_value) and isinstance(initial_value, tf.Tensor):
            with tf.init_scope():
                eager = tf.executing_eagerly()
            if eager and not hasattr(initial_value, "numpy"):
                raise errors.VariableCreationError(
                    f"The variable {_name(kwargs)!r} is created inside a "
                    "tf.function from a tensor of that function, whose value "
                    "is not known before it runs. Create the variable before, "
                    "or give a callable for its initial value. Received: "
                    f"initial_value={initial_value!r}"
                )
        with tf.init_scope():
            return self.create(**kwargs)

    def _create_without_value(
        self, kwargs: dict[str, Any], name: str, weight: dict[str, Any]
    ) -> RemoteVariable:
        """Makes a variable of a SavedModel, which is about to be read.

        It is never cut: the functions of the SavedModel know one variable.
        """
        shape = tf.TensorShape(kwargs.get("shape"))
        if not shape.is_fully_defined() or kwargs.get("dtype") is None:
            raise errors.VariableCreationError(
                f"The variable {name!r} has no initial value, so its shape and "
                f"dtype must be known. Received: shape={shape}, "
                f"dtype={kwargs.get('dtype')!r}"
            )
        dtype = tf.as_dtype(kwargs["dtype"])
        num_bytes = initialization.num_bytes(shape, dtype)
        device = self._ps_devices[self._placement.place(num_bytes)]
        return self._new_whole(device, shape, dtype, name, weight)

    def _create_worker_local(
        self, kwargs: dict[str, Any], name: str, on_read: bool
    ) -> Any:
        described = initialization.describe(
            kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("shape")
        )
        with compat.clear_device(), tf.device("/device:CPU:0"):
            value = described.make()
        if not on_read:
            return WorkerLocalSeed(
                value,
                name,
                synchronization=tf.VariableSynchronization.AUTO,
                aggregation=tf.VariableAggregation.NONE,
            )
        aggregation = kwargs.get("aggregation")
        return WorkerLocalVariable(
            value,
            name,
            aggregation=aggregation or tf.VariableAggregation.SUM,
            # Keras asks for a sum where nobody has said anything.
            rule_is_given=aggregation is not None
            and keras_compat.path_behind(kwargs["initial_value"]) is None,
        )

    def _create_per_worker(
        self, kwargs: dict[str, Any], name: str
    ) -> PerWorkerVariable:
        if kwargs.get("initial_value") is None:
            raise errors.VariableCreationError(
                f"The variable {name!r} is to be made on each worker, and "
                "nothing says with which value; expected an initial value. "
                "Received: initial_value=None, per_worker_variable=True"
            )
        described = initialization.describe(
            kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("shape")
        )
        return PerWorkerVariable(described, name, lambda: self._num_workers)

    def move_to_ps(self, state: WorkerLocalVariable) -> RemoteVariable:
        """Makes a variable on a ps that stands for a state of the workers.

        Args:
            state: Of which every lane had a copy.

        Returns:
            One variable for all, with the state's present value.
        """
        value = state.numpy()
        described = initialization.describe(
            tf.constant(value), state.dtype, state.shape
        )
        ps = self._placement.place(described.num_bytes)
        variable = self._create_whole(
            self._ps_devices[ps], described, state.path, {"trainable": False}
        )
        variable.path = state.path
        variable.wire_dtype = None
        tensorflow_strategy.set_strategy(
            variable, tensorflow_strategy.strategy_of(state)
        )
        state.replace_by(variable)
        return variable

    def _create_mirrored(
        self,
        beside: Any,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
    ) -> MirroredScalar:
        if isinstance(beside, MirroredScalar):
            # A step asks for both: they come in one message.
            device = beside.device
            self._count(device, described.num_bytes)
        else:
            ps = self._placement.place(described.num_bytes)
            device = self._ps_devices[ps]
        variable = MirroredScalar(device, described.dtype, name, **weight)
        self.inventory.add(variable)
        with compat.clear_device():
            initialization.fill(variable, described)
        return variable

    def _create_whole(
        self,
        device: str,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
    ) -> RemoteVariable:
        variable = self._new_whole(
            device, described.shape, described.dtype, name, weight
        )
        with compat.clear_device():
            initialization.fill(variable, described)
        return variable

    def _new_whole(
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

    def _create_shards(
        self,
        described: InitialValue,
        num_shards: int,
        name: str,
        weight: dict[str, Any],
    ) -> ShardedVariable:
        layout = RowLayout.even(described.shape[0], num_shards)
        row_bytes = described.num_bytes // layout.num_rows
        ps_of_shards = self._placement.place_all(
            [len(layout.rows(i)) * row_bytes for i in range(num_shards)]
        )
        devices = [self._ps_devices[ps] for ps in ps_of_shards]
        return self._fill_shards(devices, layout, described, name, weight)

    def _create_slot_of_shards(
        self,
        table: ShardedVariable,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
    ) -> ShardedVariable:
        devices = [shard.device for shard in table.variables]
        row_bytes = described.num_bytes // table.layout.num_rows
        for index, device in enumerate(devices):
            self._count(device, len(table.layout.rows(index)) * row_bytes)
        slot = self._fill_shards(devices, table.layout, described, name, weight)
        for shard, of_slot in zip(table.variables, slot.variables, strict=True):
            _share_lock(shard, of_slot)
        table.join_family(slot)
        return slot

    def _create_beside(
        self,
        variable: Any,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
    ) -> RemoteVariable:
        self._count(variable.device, described.num_bytes)
        slot = self._create_whole(variable.device, described, name, weight)
        _share_lock(variable, slot)
        if isinstance(variable, RemoteVariable) and (
            slot.shape == variable.shape
        ):
            variable.join_family(slot)
        return slot

    def _fill_shards(
        self,
        devices: list[str],
        layout: RowLayout,
        described: InitialValue,
        name: str,
        weight: dict[str, Any],
    ) -> ShardedVariable:
        row_shape = described.shape[1:]
        shards = [
            RemoteVariable(
                device,
                tf.TensorShape([len(layout.rows(i))]).concatenate(row_shape),
                described.dtype,
                f"{name}/part_{i}",
                **weight,
            )
            for i, device in enumerate(devices)
        ]
        for shard in shards:
            self.inventory.add(shard)
            shard.update_lock = self._locks.for_variable(
                shard.device, initialization.num_bytes(shard.shape, shard.dtype)
            )
        with compat.clear_device():
            initialization.fill_shards(shards, layout, described, name)
        return ShardedVariable(shards, layout, name, **weight)

    def _count(self, device: str, num_bytes: int) -> None:
        if device in self._ps_devices:
            self._placement.add(self._ps_devices.index(device), num_bytes)


def _share_lock(variable: Any, slot: RemoteVariable) -> None:
    """Has an update of a variable, which changes its slots, take one lock.

    With one of the slot's own inside, two updates could each hold the lock that
    the other one waits for: there are fewer locks than variables.
    """
    lock = getattr(variable, "update_lock", None)
    if lock is not None:
        slot.update_lock = lock


def _is_read_by_every_step(
    described: InitialValue, weight: dict[str, Any]
) -> bool:
    """Whether it is a step counter or a learning rate.

    TensorFlow and Keras tell replicas so of such numbers: those of the first
    replica count.
    """
    return (
        described.shape.rank == 0
        and not weight.get("trainable", True)
        and weight.get("aggregation")
        == tf.VariableAggregation.ONLY_FIRST_REPLICA
        and (described.dtype.is_integer or described.dtype.is_floating)
    )


def _name(kwargs: dict[str, Any]) -> str:
    return kwargs.get("name") or "Variable"

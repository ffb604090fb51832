"""Creation of variables under the scope of a strategy."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_strategy
from tfps_plugin.cluster.chief import connection
from tfps_plugin.strategy import legacy_keras
from tfps_plugin.strategy.placement.hand_placement import HandPlacement
from tfps_plugin.strategy.ps_variables import PsVariables
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.initial_values.initialization import InitialValue
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.per_worker.per_worker_variable import (
    PerWorkerVariable,
)
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.per_worker.worker_seeds import WorkerLocalSeed
from tfps_plugin.variables.sharding import partitioners
from tfps_plugin.variables.storage.storage_by_path import StorageByPath
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

_WEIGHT_KEYWORDS = ("trainable", "synchronization", "aggregation")


class VariableCreator:
    """Creates every variable under the scope of a strategy.

    - A variable with `per_worker_variable=True` exists once on each worker.
    - A step counter or learning rate becomes a mirrored scalar.
    - A metric state (`synchronization=ON_READ`) and the state of a seed
      generator become worker-local copies.
    - A slot goes beside the variable that it belongs to, cut in the same way.
    - A variable under the device of a ps stays whole and goes there.
    - A variable that the partitioner cuts becomes a `ShardedVariable`.
    - Any other variable goes whole to the ps with the fewest bytes.

    Attributes:
        on_ps: The variables on parameter servers.

    Threading: any thread may create variables.
    """

    def __init__(
        self,
        ps_devices: dict[int, str],
        variable_partitioner: partitioners.Partitioner | None,
        wire_dtype_of: Callable[[str], tf.DType | None] = lambda path: None,
        worker_indices: Callable[[], Sequence[int]] = tuple,
        *,
        counts_rows: bool = False,
        storage_by_path: StorageByPath | None = None,
    ) -> None:
        """Creates the creator.

        Args:
            ps_devices: The device of each parameter server, by its index.
            variable_partitioner: The rule that cuts variables; None keeps all
                of them whole.
            wire_dtype_of: A function from the path of a trainable variable to
                its dtype on the wire; None is the dtype of the variable.
            worker_indices: Returns the indices of the workers of the cluster.
            counts_rows: Whether lookups in tables are counted.
            storage_by_path: Where the rows of variables are kept; None: in
                memory, unless their initializers say it.
        """
        self._storage_by_path = storage_by_path or StorageByPath()
        self._partitioner = variable_partitioner
        self._wire_dtype_of = wire_dtype_of
        self._worker_indices = worker_indices
        self.on_ps = PsVariables(
            list(ps_devices.values()), [*ps_devices], counts_rows=counts_rows
        )
        self._by_hand = HandPlacement(lambda: self.on_ps.indices)
        self._connection = connection.present()

    def create(self, **kwargs: Any) -> Any:
        """Creates one variable.

        Args:
            **kwargs: The arguments of `tf.Variable`, and `colocate_with`.

        Returns:
            A variable of the kind that the class lists.

        Raises:
            StrategySupersededError: If the strategy's connection has ended.
            UnsupportedError: If Keras 2 creates it.
            VariableCreationError: If the arguments describe no variable that
                can be on the cluster.
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
        # extended.variable_created_in_scope() recognizes them by it.
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
        path = keras_compat.path_behind(initial_value) or name
        beside = kwargs.get("colocate_with")
        device = ps = None
        if beside is None:
            device = keras_compat.device_behind(initial_value)
            ps = self._by_hand.ps_of(path, device)
        if kwargs.get("per_worker_variable"):
            self._by_hand.tell_of_worker_local(ps, name)
            return self._create_per_worker(kwargs, name)
        if initial_value is None:
            return self._create_without_value(kwargs, name, weight, ps)
        on_read = weight.get("synchronization") == (
            tf.VariableSynchronization.ON_READ
        )
        if on_read or keras_compat.is_seed_state(initial_value, name):
            self._by_hand.tell_of_worker_local(ps, name)
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
        if _is_read_by_every_step(described, weight):
            return self.on_ps.mirrored(beside, described, name, weight, ps)
        if isinstance(beside, ShardedVariable) and (
            described.shape[:1] == beside._shape[:1]
        ):
            return self.on_ps.slot_of_shards(beside, described, name, weight)
        if beside is not None:
            return self.on_ps.beside(beside, described, name, weight)
        num_shards = partitioners.num_shards(
            self._partitioner, described.shape, described.dtype, name
        )
        rows_per_block = getattr(described.initializer, "rows_per_block", 1)
        storage = self._storage_of(described, path)
        if num_shards > 1:
            if ps is None:
                return self.on_ps.sharded(
                    described,
                    num_shards,
                    name,
                    weight,
                    rows_per_block,
                    storage,
                )
            self._by_hand.tell_of_whole(path, device, ps, num_shards)
        return self.on_ps.whole(described, name, weight, ps, storage)

    def _storage_of(
        self, described: InitialValue, path: str
    ) -> TieredStorage | None:
        """Returns where the rows of a variable are kept; None: in memory.

        A layer with an option of its own says it by its initializer.
        """
        by_path = self._storage_by_path.of(
            path,
            described.shape.as_list(),
            has_numbers=described.dtype.is_numpy_compatible
            and described.dtype != tf.string,
        )
        own: TieredStorage | None = getattr(
            described.initializer, "storage", None
        )
        return by_path if own is None else own

    def tell_of_unused_storage(self) -> None:
        """Warns, once, of `table_storage` for variables that there are not."""
        self._storage_by_path.tell_of_unused()

    def _note_memory(self, error: Exception, kwargs: dict[str, Any]) -> None:
        """Adds the ps that lacks memory for a variable to an error."""
        for index, device in zip(
            self.on_ps.indices, self.on_ps.devices, strict=True
        ):
            if device in str(error):
                error.add_note(
                    f"There is no room for the variable {_name(kwargs)!r} on "
                    f"parameter server {index}. With it, it would hold "
                    f"{self.on_ps.inventory.describe(device)}. What to do: "
                    "give it more memory, cut tables into more shards "
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
                    "is unknown until it runs. Create the variable outside the "
                    "function, or pass a callable as its initial value. "
                    "Received: "
                    f"initial_value={initial_value!r}"
                )
        with tf.init_scope():
            return self.create(**kwargs)

    def _create_without_value(
        self,
        kwargs: dict[str, Any],
        name: str,
        weight: dict[str, Any],
        ps: int | None,
    ) -> RemoteVariable:
        """Creates a variable of a SavedModel, whose value is read later.

        It stays whole, because the functions of the SavedModel use one
        variable.
        """
        shape = tf.TensorShape(kwargs.get("shape"))
        if not shape.is_fully_defined() or kwargs.get("dtype") is None:
            raise errors.VariableCreationError(
                f"The variable {name!r} has no initial value, so its shape and "
                f"dtype must be known. Received: shape={shape}, "
                f"dtype={kwargs.get('dtype')!r}"
            )
        dtype = tf.as_dtype(kwargs["dtype"])
        return self.on_ps.unfilled(shape, dtype, name, weight, ps)

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
            # Keras passes SUM even if its caller gave no aggregation.
            rule_is_given=aggregation is not None
            and keras_compat.path_behind(kwargs["initial_value"]) is None,
        )

    def _create_per_worker(
        self, kwargs: dict[str, Any], name: str
    ) -> PerWorkerVariable:
        if kwargs.get("initial_value") is None:
            raise errors.VariableCreationError(
                f"The variable {name!r} has no value to start with on each "
                "worker; expected an initial value. Received: "
                "initial_value=None, per_worker_variable=True. Pass "
                "initial_value."
            )
        described = initialization.describe(
            kwargs["initial_value"], kwargs.get("dtype"), kwargs.get("shape")
        )
        return PerWorkerVariable(described, name, self._worker_indices)

    def move_to_ps(self, state: WorkerLocalVariable) -> RemoteVariable:
        """Creates a variable on a ps that replaces a state of the workers.

        Args:
            state: The state, of which every lane has had a copy.

        Returns:
            One variable for all workers, with the current value of the state.
        """
        value = state.numpy()
        described = initialization.describe(
            tf.constant(value), state.dtype, state.shape
        )
        variable = self.on_ps.whole(described, state.path, {"trainable": False})
        variable.path = state.path
        variable.wire_dtype = None
        tensorflow_strategy.set_strategy(
            variable, tensorflow_strategy.strategy_of(state)
        )
        state.replace_by(variable)
        return variable


def _is_read_by_every_step(
    described: InitialValue, weight: dict[str, Any]
) -> bool:
    """Returns True for a step counter or a learning rate.

    TensorFlow and Keras create those with an aggregation that takes the value
    of the first replica.
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

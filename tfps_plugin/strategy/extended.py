"""Extended part of a strategy, which TensorFlow and Keras call."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.runtime import tensorflow_strategy as compat
from tfps_plugin.inputs import input_context
from tfps_plugin.strategy import updates
from tfps_plugin.strategy.chief_runs import ChiefRuns
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.strategy.replicas import per_replica
from tfps_plugin.strategy.replicas import replica_context
from tfps_plugin.strategy.replicas import split_batches
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.strategy.replicas.replica_context import ReplicaContext
from tfps_plugin.strategy.replicas.replica_results import ReplicaResults
from tfps_plugin.strategy.replicas.worker_replicas import WorkerReplicas
from tfps_plugin.strategy.variable_creation import VariableCreator
from tfps_plugin.variables.per_worker.worker_tables import WorkerTable
from tfps_plugin.variables.step_trace import StepTrace

# TensorFlow asks for tables by the names of their classes. A
# `tf.lookup.StaticVocabularyTable` contains a HashTable, the older form.
_TABLE_CLASSES = ["StaticHashTable", "HashTable"]


class ParameterServerExtended(compat.StrategyExtended):
    """Extended part of one `ParameterServerStrategy`.

    A step runs on one worker, in each of its replicas. Updates of variables
    run where the variables live.

    Attributes:
        chief_runs: The record of functions that are traced for workers; it
            warns of other calls of `strategy.run`.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        creator: VariableCreator,
        *,
        exact_updates: bool = False,
    ) -> None:
        """Creates the extended part of `strategy`.

        Args:
            strategy: The strategy that this belongs to.
            creator: Creates the variables of its scope.
            exact_updates: Whether a sparse gradient updates all rows.
        """
        super().__init__(strategy)
        self._creator = creator
        self._exact_updates = exact_updates
        self.chief_runs = ChiefRuns()

    # Variables.

    def _create_variable(
        self, next_creator: Callable[..., Any], **kwargs: Any
    ) -> Any:
        if tensorflow_saving.in_saved_graph():
            # Variables of a SavedModel are not on the cluster.
            return next_creator(**kwargs)
        # Functions would capture the handle of next_creator's variable by
        # value, and fail once its parameter server was replaced.
        return self._creator.create(**kwargs)

    def _validate_colocate_with_variable(self, variable: Any) -> None:
        if not hasattr(variable, "device"):
            raise errors.VariableCreationError(
                "colocate_vars_with() expects a variable, which has a device. "
                f"Received: colocate_with_variable={variable!r}"
            )

    def _resource_creator_scope(self) -> Any:
        def create(
            next_creator: Callable[..., Any], *args: Any, **kwargs: Any
        ) -> Any:
            del next_creator
            return WorkerTable(*args, **kwargs)

        return compat.resource_creator_scope(_TABLE_CLASSES, create)

    def value_container(self, value: Any) -> Any:
        """Returns the variable that a value belongs to: a shard's table."""
        container = getattr(value, "_distributed_container", None)
        return value if container is None else container()

    def read_var(self, variable: Any) -> tf.Tensor:
        """Returns the value of a variable."""
        return tf.convert_to_tensor(variable)

    # Steps.

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        self.chief_runs.note(len(self.worker_devices))
        strategy = self._container_strategy()

        def call() -> Any:
            devices = self._devices_of_replicas()
            if len(devices) > 1:
                return WorkerReplicas(strategy, devices).run(fn, args, kwargs)
            whole_args, whole_kwargs = split_batches.whole((args, kwargs))
            with ReplicaContext(strategy, replica_id_in_sync_group=0):
                return fn(*whole_args, **whole_kwargs)

        steps = strategy.scheduled_steps
        if (
            steps is not None
            and self.chief_runs.is_looking_for_steps
            and not tf.executing_eagerly()
        ):
            return steps.trace(call, (args, kwargs))
        return call()

    def _devices_of_replicas(self) -> Sequence[str]:
        """Returns the devices on which the function being traced computes."""
        trace = StepTrace.current()
        if (
            trace.replica is not None
            or trace.is_discarded
            or trace.only_on is not None
            or tf.executing_eagerly()
            or not self.chief_runs.is_traced_for_workers
        ):
            return [""]
        return self._container_strategy().replica_devices

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group

    def _use_merge_call(self) -> bool:
        # Updates run on parameter servers, once for all replicas.
        return False

    def _replica_ctx_all_reduce(
        self, reduce_op: Any, value: Any, options: Any = None
    ) -> Any:
        # A sum over workers is that of `ReplicaContext`.
        return value

    def _reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any
    ) -> Any:
        if isinstance(value, ReplicaResults):
            return value.reduced(reduce_op)
        replica_context.require_own_results(reduce_op)
        if isinstance(value, PerReplica):
            return value.reduced(reduce_op)
        return value

    def _batch_reduce_to(
        self, reduce_op: Any, pairs: Sequence[Any], options: Any
    ) -> list[Any]:
        replica_context.require_own_results(reduce_op)
        return [
            value.reduced(reduce_op) if isinstance(value, PerReplica) else value
            for value, _ in pairs
        ]

    def _gather_to_implementation(
        self, value: Any, destinations: Any, axis: int, options: Any
    ) -> Any:
        if isinstance(value, ReplicaResults | PerReplica):
            return value.gathered(axis)
        return value

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, ReplicaResults | PerReplica):
            return value.values
        return (value,)

    # Updates.

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        group: bool,
    ) -> Any:
        result = updates.update(
            var, fn, args, kwargs, exact=self._exact_updates
        )
        return result if group else self._local_results(result)

    def _replica_ctx_update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        return self._update(var, fn, args, kwargs or {}, group)

    def _update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
        group: bool,
    ) -> Any:
        device = getattr(colocate_with, "device", colocate_with)
        with tf.device(device), compat.UpdateContext(device):
            result = fn(*args, **kwargs)
        return result if group else self._local_results(result)

    # Input.

    def _experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: Any
    ) -> tf.data.Dataset:
        # create_per_worker_dataset() gives each worker its own iterator.
        return self._split(dataset)

    def _distribute_datasets_from_function(
        self, dataset_fn: Callable[..., tf.data.Dataset], options: Any
    ) -> tf.data.Dataset:
        return self._split(
            dataset_fn(input_context.current() or tf.distribute.InputContext())
        )

    def _split(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a dataset whose batches are split over replicas."""
        number = len(self._container_strategy().replica_devices)
        if number == 1:
            return dataset
        return split_batches.split_dataset(dataset, number)

    def _experimental_distribute_values_from_function(
        self, value_fn: Callable[..., Any]
    ) -> Any:
        number = len(self._container_strategy().replica_devices)
        return per_replica.together(
            [
                value_fn(tf.distribute.experimental.ValueContext(index, number))
                for index in range(number)
            ]
        )

    # Facts.

    def _in_multi_worker_mode(self) -> bool:
        # With True, Keras would reduce results over workers.
        return False

    @property
    def _num_replicas_in_sync(self) -> int:
        # For the program, such as one that computes the size of a batch. In a
        # replica it is one: the gradients of workers and replicas are weighed
        # by their numbers of examples, so no loss may be divided beforehand.
        # A function of workers outside of `run` has the whole batch, too.
        if (
            tf.distribute.has_strategy()
            and not tf.distribute.in_cross_replica_context()
        ) or self._is_in_function_of_workers:
            return 1
        strategy = self._container_strategy()
        # TensorFlow asks while the strategy is being created, too.
        number = len(getattr(strategy, "replica_devices", [""]))
        consistency = getattr(strategy, "consistency", None)
        if isinstance(consistency, Sync):
            number *= self.num_batches_in_sync
        return number

    @property
    def _is_in_function_of_workers(self) -> bool:
        return (
            tf.inside_function()
            and input_context.current() is None
            and self.chief_runs.is_traced_for_workers
        )

    @property
    def num_batches_in_sync(self) -> int:
        """Number of workers whose batches make one step."""
        consistency = self._container_strategy().consistency
        return len(self.worker_devices) if isinstance(consistency, Sync) else 1

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of each worker."""
        return self._container_strategy().worker_devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The device of each parameter server."""
        return self._container_strategy().ps_devices

    def non_slot_devices(self, var_list: Any) -> str:
        """Device with the fewest bytes, for variables beside no other."""
        held = self._creator.on_ps.bytes_per_ps
        return min(zip(held, self.parameter_devices, strict=True))[1]

    # The shapes of batches may differ.
    experimental_require_static_shapes = False
    # One graph serves all workers.
    experimental_between_graph = False
    # The chief initializes variables, and writes checkpoints and summaries.
    experimental_should_init = True
    should_checkpoint = True
    should_save_summary = True

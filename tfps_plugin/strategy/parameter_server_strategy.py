"""Strategy that trains Keras models on a cluster."""

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Unpack

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import spec
from tfps_plugin.cluster.chief.session import Session
from tfps_plugin.monitoring.state.progress import Progress
from tfps_plugin.strategy import chief_cluster
from tfps_plugin.strategy import consistency as consistencies
from tfps_plugin.strategy import deprecated_options
from tfps_plugin.strategy import explanations
from tfps_plugin.strategy import options as options_module
from tfps_plugin.strategy.consistency import Consistency
from tfps_plugin.strategy.deprecated_options import DeprecatedAttributes
from tfps_plugin.strategy.deprecated_options import DeprecatedKeywords
from tfps_plugin.strategy.explanations import Explanations
from tfps_plugin.strategy.extended import ParameterServerExtended
from tfps_plugin.strategy.monitoring_options import MonitoringOptions
from tfps_plugin.strategy.options import CommunicationOptions
from tfps_plugin.strategy.options import Placement
from tfps_plugin.strategy.options import RecoveryOptions
from tfps_plugin.strategy.options import SchedulingOptions
from tfps_plugin.strategy.options import SparseUpdate
from tfps_plugin.strategy.options import StartupOptions
from tfps_plugin.strategy.ps_variables import PsVariables
from tfps_plugin.strategy.replicas import replica_context
from tfps_plugin.strategy.replicas import worker_devices
from tfps_plugin.strategy.replicas.per_replica import PerReplica
from tfps_plugin.strategy.replicas.replica_results import ReplicaResults
from tfps_plugin.strategy.variable_creation import VariableCreator
from tfps_plugin.transport import fusion
from tfps_plugin.transport.explanation import Explanation
from tfps_plugin.transport.explanation import Job
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.sharding.inventory import Inventory
from tfps_plugin.variables.sharding.partitioners import Partitioner
from tfps_plugin.variables.storage.storage_by_path import StorageByPath
from tfps_plugin.variables.storage.tiered_storage import TieredStorage

_logger = logging.getLogger("tfps_plugin.strategy")

# Called with every new strategy. Floors above this one register here what they
# install into Keras.
construction_hooks: list[Callable[["ParameterServerStrategy"], None]] = []


class ParameterServerStrategy(DeprecatedAttributes, tf.distribute.Strategy):
    """Strategy that trains on workers, with variables on parameter servers.

    ```python
    strategy = tfps.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([...])
        model.compile(...)
    model.fit(tfps.DatasetCreator(dataset_fn), steps_per_epoch=..., epochs=...)
    ```

    By default training is asynchronous: every worker reads the variables,
    computes a step on its own batch, and the parameter servers apply its
    gradients at once. With `consistency=tfps.Sync()`, workers make every step
    together, with the mean gradient over all their examples. Create the
    strategy once, in the chief, before the models that it is to train; earlier
    models go on working on the chief alone.

    Differences from `tf.distribute.ParameterServerStrategy`: it works with
    Keras 3; `cluster_resolver` is optional; it places variables by bytes
    instead of round robin; Keras sees a sharded variable as one variable; a
    function keeps working after a task was replaced.

    Threading: create it on one thread; any thread may enter its scope.

    Attributes:
        background_work: Jobs of the floors above that run beside a
            coordinator, each with `start` and `stop`.
        resharder: The object that moves variables to other parameter servers.
        ps_restorer: The object that restores lost parameter servers; None if
            nothing does.
        values_lock: Held while variables are restored, or go on elsewhere.
        scheduled_steps: The object that finds synchronous steps in scheduled
            functions; None if there are none.
        monitor: The object that knows the state of the job.
        progress: What the program runs now, as the monitor shows it.

    References:
        - Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012.
        - Li et al., "Scaling Distributed Machine Learning with the Parameter
          Server", OSDI 2014.
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Partitioner | None = None,
        *,
        consistency: Consistency | None = None,
        startup: StartupOptions | None = None,
        scheduling: SchedulingOptions | None = None,
        communication: CommunicationOptions | None = None,
        recovery: RecoveryOptions | None = None,
        monitoring: MonitoringOptions | None = None,
        sparse_update: SparseUpdate = "auto",
        replicas_per_worker: int | None = None,
        elastic: bool | None = None,
        placement: Placement = "bytes",
        table_storage: Mapping[str, TieredStorage] | None = None,
        **deprecated: Unpack[DeprecatedKeywords],
    ) -> None:
        """Connects to the cluster.

        Args:
            cluster_resolver: Any `tf.distribute.cluster_resolver`
                `.ClusterResolver`. None reads `TF_CONFIG`; without that
                either, two workers and a parameter server start on this
                machine and stop when the program ends.
            variable_partitioner: The rule by which variables are cut into
                shards: one of `tfps.partitioners`, or any callable
                `(shape, dtype)` or `(shape, dtype, axis=0)` that returns the
                number of parts along each axis. None keeps every variable
                whole. An initializer that takes `partition_shape` and
                `partition_offset` is called once per shard, for the rows of
                that shard.
            consistency: The rule by which workers wait for each other:
                `tfps.Async()`, `tfps.Sync()` or
                `tfps.BoundedStaleness(max_staleness)`. None: `tfps.Async()`.
            startup: The seconds to wait for the tasks, and the number of
                workers to wait for. None: `tfps.StartupOptions()`.
            scheduling: The number of closures that run at the same time, and
                of steps in each. None: `tfps.SchedulingOptions()`.
            communication: The messages and dtypes in which values travel. None:
                `tfps.CommunicationOptions()`.
            recovery: The treatment of a lost parameter server. None:
                `tfps.RecoveryOptions()`.
            monitoring: Who may watch the job, and where. None:
                `tfps.MonitoringOptions()`.
            sparse_update: The rule by which optimizers update a table of which
                a batch has touched some rows.

                - "lazy" updates the touched rows of the table and its slots.
                  The cost follows the batch. Momentum, weight decay and moving
                  averages leave the other rows as they are.
                - "exact" updates all rows, on the parameter servers, as Keras
                  does in one process. The cost follows the table.
                - "auto" is "exact" for the smallest tables, as long as their
                  updates take less than a tenth of a parameter server's time,
                  and "lazy" for the others. It measures both times, and the
                  log names the tables of each kind. In a custom loop a step
                  counts as 10 ms.
                - "caught_up" computes the numbers of "exact" at a cost that
                  follows the batch: when a row is next looked up or updated, a
                  closed form makes up for the steps since its last update.
                  Building an optimizer that has no closed form raises an error.
            replicas_per_worker: Number of replicas of a worker. Each computes
                a share of the worker's batch, on an accelerator of its own,
                and their gradients are added up on the worker. None: one for
                each accelerator that the workers say they have; without any,
                one for each logical CPU of a worker's server.
            elastic: Whether to ask `cluster_resolver` every 5 s which tasks
                there are, and to add and remove workers and parameter servers
                accordingly; see `docs/elastic.md`. None: only if
                `TFPS_CLUSTER_FILE` names a file, which then takes the place of
                `TF_CONFIG`.
            placement: Where variables are placed. `"bytes"`: on the parameter
                server with the fewest bytes. `"traffic"`: so at first; after
                200 steps, shards move so that parameter servers send and get
                about the same, and hold about the same, see
                `docs/performance.md`.
            table_storage: Tables that are larger than memory, by their paths:
                `{"items/embeddings": tfps.TieredStorage(...)}` keeps most rows
                of the variable with this path on the disks of parameter
                servers. A key is a path, or a regular expression that is
                searched in paths. It needs no change of the layer, such as a
                `keras.layers.Embedding`; see `docs/tiered_storage.md`.
            **deprecated: The options of the four groups by their names of the
                last release, with a `FutureWarning` that shows the new
                spelling.

        Raises:
            ClusterConfigurationError: If the description of the cluster is
                wrong, this task is not its chief, or the cluster is too small
                for the options; if workers have different accelerators, or
                fewer than `replicas_per_worker`.
            ClusterStartTimeoutError: If too few tasks answer in time. The
                message lists each of them, its address and the last reason.
            PartitioningError: If `variable_partitioner` is not callable.
            TypeError: If a group of options is of another class, a keyword is
                unknown, or `table_storage` is no mapping to `TieredStorage`.
            ValueError: If an option has no meaning, or is given in both forms.
        """
        if variable_partitioner is not None and not callable(
            variable_partitioner
        ):
            raise errors.PartitioningError(
                "variable_partitioner must be a callable (shape, dtype, "
                "axis=0), such as tfps.partitioners.MinSizePartitioner(...). "
                f"Received: variable_partitioner={variable_partitioner!r}"
            )
        options = deprecated_options.merged(
            {
                "startup": startup,
                "scheduling": scheduling,
                "communication": communication,
                "recovery": recovery,
                "monitoring": monitoring,
            },
            deprecated,
            stacklevel=2,
        )
        options_module.require_sparse_update(sparse_update)
        worker_devices.require_number(replicas_per_worker)
        consistency, options = consistencies.checked(
            consistency, options, sparse_update
        )
        if elastic not in (True, False, None):
            raise ValueError(
                "ParameterServerStrategy has no such choice. Expected "
                "elastic to be True, False or None. Received: "
                f"elastic={elastic!r}. Pass True to follow cluster_resolver, "
                "or leave it out."
            )
        options_module.require_placement(placement)
        storage_by_path = StorageByPath(table_storage)
        resolver, self._elastic = chief_cluster.resolver_to_follow(
            cluster_resolver, elastic
        )
        self._placement: Placement = placement
        cluster = chief_cluster.described_by(resolver)
        options.require_cluster(cluster)
        consistencies.require_workers(
            consistency, len(cluster.worker_addresses)
        )
        self._options = options
        self._sparse_update = sparse_update
        self._consistency = consistency
        self._cluster_resolver = resolver
        self.background_work: list[Any] = []
        # A floor above sets it; see `construction_hooks`.
        self.ps_restorer: Any = None
        # Likewise.
        self.resharder: Any = None
        # Likewise: it is told of `fit` in the place of running it.
        self.rehearsal: Any = None
        self._layout_version = 0
        self.values_lock = threading.RLock()
        # Likewise.
        self.scheduled_steps: Any = None
        # Likewise.
        self.monitor: Any = None
        self.progress = Progress()
        self._session = Session.connect(
            cluster,
            look_up=lambda: chief_cluster.described_by(resolver),
            timeout_seconds=options.startup.timeout_seconds,
            min_workers=options.startup.min_workers,
        )
        found = {
            str(task): self._session.device_names(task)
            for task in self._session.workers
            if self._session.device_names(task)
        }
        self._replica_devices = worker_devices.choose(
            found, replicas_per_worker
        )
        self._copy_devices = worker_devices.for_copies(
            found, self._replica_devices
        )
        self._session.missing_devices = functools.partial(
            worker_devices.missing, replica_devices=self._replica_devices
        )
        session = self._session
        self._ps_devices = {
            task.index: session.device(task)
            for task in session.parameter_servers
        }
        self._cluster_coordinator: Any = None
        self._explanations = Explanations()
        self._creator = VariableCreator(
            self._ps_devices,
            variable_partitioner,
            wire.chooser(options.communication.wire_dtype),
            lambda: [task.index for task in session.workers],
            counts_rows=placement == "traffic" or options.monitoring.count_rows,
            storage_by_path=storage_by_path,
        )
        super().__init__(
            ParameterServerExtended(
                self, self._creator, exact_updates=sparse_update == "exact"
            )
        )
        for hook in construction_hooks:
            hook(self)
        _logger.info(
            "Connected to %d workers and %d parameter servers.",
            sum(task.job == spec.WORKER for task in self._session.listed),
            len(self.ps_devices),
        )

    @property
    def session(self) -> Session:
        """Connection of the chief to the tasks."""
        return self._session

    @property
    def cluster_resolver(self) -> Any:
        """Resolver that describes the cluster."""
        return self._cluster_resolver

    @property
    def startup(self) -> StartupOptions:
        """Options by which the strategy waited for its tasks."""
        return self._options.startup

    @property
    def scheduling(self) -> SchedulingOptions:
        """Options by which the strategy keeps workers busy."""
        return self._options.scheduling

    @property
    def communication(self) -> CommunicationOptions:
        """Options by which values travel between tasks.

        It may be set to options with another `fusion`, which holds for
        functions that are traced from then on.

        Raises:
            ValueError: If other options differ, too.
        """
        return self._options.communication

    @communication.setter
    def communication(self, options: CommunicationOptions) -> None:
        options_now = self._options.communication
        if dataclasses.replace(options_now, fusion=options.fusion) != options:
            raise ValueError(
                "Only the fusion of communication may change once the strategy "
                f"exists. Expected wire_dtype={options_now.wire_dtype!r}. "
                f"Received: communication={options!r}. Give it when you create "
                "the strategy."
            )
        self._options = dataclasses.replace(
            self._options, communication=options
        )

    @property
    def recovery(self) -> RecoveryOptions:
        """Options by which the strategy treats a lost parameter server."""
        return self._options.recovery

    @property
    def monitoring(self) -> MonitoringOptions:
        """Options for watching the job."""
        return self._options.monitoring

    @property
    def consistency(self) -> Consistency:
        """Rule by which workers wait for each other; see `__init__`."""
        return self._consistency

    @property
    def sparse_update(self) -> SparseUpdate:
        """Rule by which sparse gradients update tables; see `__init__`."""
        return self._sparse_update

    @property
    def elastic(self) -> bool:
        """True if tasks are added and removed as the resolver says."""
        return self._elastic

    @property
    def placement(self) -> Placement:
        """Rule by which variables are placed; see `__init__`."""
        return self._placement

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Device of each worker that belongs to the cluster."""
        return tuple(
            self._session.device(task) for task in self._session.workers
        )

    @property
    def worker_capacity(self) -> int:
        """Number of workers that steps of several are traced for now."""
        return consistencies.worker_capacity(
            len(self._session.cluster.worker_addresses)
        )

    @property
    def replica_devices(self) -> tuple[str, ...]:
        """Devices of a worker on which its replicas compute, without a task.

        `("",)` for one replica, on the device that TensorFlow chooses.
        """
        return self._replica_devices

    @property
    def copy_devices(self) -> tuple[str, ...]:
        """Devices of a worker to which `fit` copies batches ahead of steps.

        One for each replica; none if workers compute where their input is.
        """
        return self._copy_devices

    @property
    def ps_devices(self) -> tuple[str, ...]:
        """Device of each parameter server, in the order of their indices."""
        return tuple(self._ps_devices.values())

    @property
    def ps_by_index(self) -> dict[int, str]:
        """Device of each parameter server, by its index."""
        return dict(self._ps_devices)

    @property
    def coordinator(self) -> Any:
        """Its coordinator; None if it has none yet."""
        return self._cluster_coordinator

    @property
    def has_work(self) -> bool:
        """True if functions of its coordinator wait or run."""
        coordinator = self._cluster_coordinator
        return coordinator is not None and bool(coordinator.has_work)

    @property
    def layout_version(self) -> int:
        """A number that changes when variables have other parameter servers.

        Functions that were traced before cannot be called any more.
        """
        return self._layout_version

    def go_on_with(self, ps_devices: dict[int, str]) -> None:
        """Goes on with other parameter servers, once variables have moved.

        Args:
            ps_devices: The device of each of them, by its index.
        """
        self._ps_devices = ps_devices
        self._creator.on_ps.go_on_with(list(ps_devices.values()), [*ps_devices])
        # Steps are traced again.
        self._explanations = Explanations()
        self._layout_version += 1

    @property
    def on_ps(self) -> PsVariables:
        """Variables on parameter servers."""
        return self._creator.on_ps

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Returns the sum or the mean of what workers have returned.

        As `tf.distribute.Strategy.reduce`.

        Args:
            reduce_op: A `tf.distribute.ReduceOp`, or its name.
            value: What `run` returns, or results that were fetched. A value
                that is not one of several is the result.
            axis: An axis of each value to reduce as well, or None.

        Returns:
            A tensor.

        Raises:
            UnsupportedError: In a scheduled function that has made a
                synchronous step.
        """
        if isinstance(value, ReplicaResults):
            return value.reduced(reduce_op, axis)
        if isinstance(value, PerReplica):
            replica_context.require_own_results(reduce_op)
            return value.reduced(reduce_op, axis)
        return super().reduce(reduce_op, value, axis)

    def fused(
        self, function: Any, owner: Any = None, runs_on: Job = "worker"
    ) -> Any:
        """Returns the function that a task runs in place of another one.

        Args:
            function: A concrete function that was traced in the strategy's
                scope, under no device.
            owner: The model, or another object, whose steps it runs; `explain`
                knows them by it.
            runs_on: Job of the task that runs it.

        Returns:
            A concrete function that does the same with fewer messages;
            `function` itself without communication fusion.
        """
        if not self.communication.fusion:
            return function
        if owner is not None:
            self._explanations.note(owner, function, runs_on)
        return fusion.fuse(function)

    def explain(
        self,
        step: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        print_fn: Callable[[str], Any] | None = print,
    ) -> Explanation:
        """Shows what a step sends between tasks, and where things are.

        ```python
        model.fit(...)
        strategy.explain(model)
        ```

        Args:
            step: A Keras model that `fit`, `evaluate` or `predict` have run
                on this cluster with communication fusion; or a `tf.function`
                or concrete function that workers run.
            args: Positional arguments of the `tf.function`, or their specs.
            kwargs: Keyword arguments of the `tf.function`, or their specs.
            print_fn: Receives the table as one string; None prints nothing.

        Returns:
            The content of the table. For the function and each of its loops
            and branches it lists the messages in the order in which they leave:
            their tasks, how many values and bytes each carries, and in how many
            tensors these travel; and the number of operations on each task.
            Under `tfps.Sync()`, functions of the chief follow, if steps need
            one: it adds up norms to clip by, or decides whose gradients count.
            Last come the variables that the step uses, and their tasks.

        Raises:
            ValueError: If `step` is a model that has not run here, or none of
                these.
        """
        return explanations.explain(
            self, self._explanations, step, args, kwargs, print_fn
        )

    def tell_of_unused_storage(self) -> None:
        """Warns, once, of keys of `table_storage` that are for no variable."""
        self._creator.tell_of_unused_storage()

    @property
    def inventory(self) -> Inventory:
        """Variables that the parameter servers hold."""
        return self._creator.on_ps.inventory

    def move_to_ps(self, state: WorkerLocalVariable) -> RemoteVariable:
        """Moves a worker-local state to a parameter server.

        Args:
            state: A variable of this strategy, of which every lane has a copy.

        Returns:
            The variable that replaces it.
        """
        return self._creator.move_to_ps(state)

    @property
    def bytes_per_ps(self) -> tuple[int, ...]:
        """Bytes of variables placed on each parameter server so far."""
        return self._creator.on_ps.bytes_per_ps

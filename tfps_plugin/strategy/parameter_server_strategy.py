"""`tfps.ParameterServerStrategy`."""

import dataclasses
import logging
import weakref
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import Literal
from typing import get_args

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.cluster import local_cluster
from tfps_plugin.cluster import quorum
from tfps_plugin.cluster import spec
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.chief.session import Session
from tfps_plugin.strategy.extended import ParameterServerExtended
from tfps_plugin.strategy.variable_creation import VariableCreator
from tfps_plugin.transport import fusion
from tfps_plugin.transport.explanation import Explanation
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.compression.wire import WireDtype
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.sharding.inventory import Inventory
from tfps_plugin.variables.sharding.partitioners import Partitioner

_logger = logging.getLogger(__name__)

SparseUpdate = Literal["auto", "lazy", "exact", "caught_up"]
Recovery = Literal["lost", "consistent"]
Replicate = Literal["ps"]

# Called with every new strategy. Floors above this one register here what they
# install into Keras.
construction_hooks: list[Callable[["ParameterServerStrategy"], None]] = []


class ParameterServerStrategy(tf.distribute.Strategy):
    """Trains on workers, with the variables on parameter servers.

    ```python
    strategy = tfps.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([...])
        model.compile(...)
    model.fit(tfps.DatasetCreator(dataset_fn), steps_per_epoch=..., epochs=...)
    ```

    Training is asynchronous: every worker reads the variables, computes a
    step on its own batch, and its gradients are applied by the parameter
    servers at once. Create it once in the chief, before the models that it is
    to train; what was made before goes on working on the chief alone.

    Differences from `tf.distribute.ParameterServerStrategy`: it works with
    Keras 3; `cluster_resolver` may be left out; variables are placed by bytes
    instead of round robin; sharded variables are one variable to Keras; a
    function keeps working after a task was replaced.

    Attributes:
        communication_fusion: As given; if changed, for functions that are
            traced from then on.
        in_place_recovery: As given.
        recovery: As given.
        ps_recovery_timeout_seconds: As given.
        ps_restorer: Who knows what lost parameter servers held; None: nobody.
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Partitioner | None = None,
        *,
        max_closures_in_flight_per_worker: int | None = None,
        prefetch_embeddings: bool | None = None,
        steps_per_closure: int | None = None,
        communication_fusion: bool = True,
        wire_dtype: WireDtype = None,
        sparse_update: SparseUpdate = "auto",
        in_place_recovery: bool = True,
        recovery: Recovery = "lost",
        ps_recovery_timeout_seconds: float = 600.0,
        replicate: Replicate | None = None,
        replicate_every_steps: int = 100,
        start_timeout_seconds: float = 300.0,
        min_workers: int | None = None,
    ) -> None:
        """Connects to the cluster.

        Args:
            cluster_resolver: Any `tf.distribute.cluster_resolver`
                `.ClusterResolver`. None reads `TF_CONFIG`; without that
                either, two workers and a ps are started on this machine and
                stopped when the program ends.
            variable_partitioner: Cuts variables into shards: one of
                `tfps.partitioners`, or any callable `(shape, dtype)` or
                `(shape, dtype, axis=0)` that returns the number of parts along
                each axis. None keeps every variable whole. An initializer
                that takes `partition_shape` and `partition_offset` is asked
                for the rows of each shard alone.
            max_closures_in_flight_per_worker: How many scheduled functions
                each worker runs at the same time: speed against quality. With
                more of them, gradients are of older weights, and the loss
                falls more slowly, or jumps (`docs/quality.md` has figures). 1
                makes every worker finish one before it gets the next. None:
                `fit` begins with one, and tries up to four when the loss no
                longer falls fast; it keeps those that make training at least
                a quarter faster. Evaluation and scheduled functions of your
                own run two at a time; set 1 for a training loop of your own
                in which quality comes first.
            prefetch_embeddings: Whether the rows and weights of a worker's
                next step are fetched while it computes a step: speed against
                quality, too. The next step then does not know the update of
                that one yet: its gradient is older by one update of the same
                worker. It is what two calls at a time do. True: always; so
                never one call at a time, from the first step on. False:
                never; so always one, also of scheduled functions. None: when
                more than one call at a time turns out to be worth it.
            steps_per_closure: How many training steps `Model.fit` packs into
                one call of a worker. None chooses, by how long the first
                steps take; `steps_per_execution` of `Model.compile` wins over
                both.
            communication_fusion: Whether values that can travel between two
                tasks at the same time travel together. Results are the same
                without, and a step of a model with many variables takes
                about twice as long; see `explain`.
            wire_dtype: What trainable variables of a wider float dtype are
                rounded to between tasks: "bfloat16", "float16" or "int8". Of
                weights and rows that a training step reads, and of gradients,
                half as many bytes travel, or a quarter and a scale for each
                row (int8; only of tables and other matrices of eight columns
                or more); what parameter servers hold, the optimizer,
                and what workers compute stay as they are. A callable is given
                the path of each new variable, and returns such a dtype, or
                None for one that is not to be rounded. None rounds nothing.
            sparse_update: What an optimizer does with a table of which a batch
                has touched some rows. "lazy" updates the touched rows of the
                table and of its slots: cost follows the batch, and with
                momentum, weight decay or averages the other rows stay as they
                are. "exact" updates all rows, on the parameter servers, as
                Keras does in one process: cost follows the table. "auto" is
                "exact" for tables, the smallest first, of which that takes a
                parameter server less than a tenth of its time, and "lazy" for
                the others; both are measured, and the log says which tables
                are which. In a custom loop steps count as 10 ms long.
                "caught_up" has the numbers of "exact" at a cost that follows
                the batch: what steps without a row would have done to it is
                made up for, in closed form, when it is next looked up or
                updated. An optimizer without a closed form is refused when it
                is built.
            in_place_recovery: Whether training waits for a parameter server
                that is lost and goes on with values from the newest
                checkpoint (of a `tfps.CheckpointManager` or
                `tfps.callbacks.BackupAndRestore`). If not, or if there is no
                checkpoint, `ParameterServerLostError` is raised.
            recovery: What is set back to the checkpoint. "lost": what the
                parameter server held; the others keep what they have learnt
                since. "consistent": all variables of the checkpoint.
            ps_recovery_timeout_seconds: How long training waits for a lost
                parameter server.
            replicate: "ps": every variable and shard has a second copy, on
                the next parameter server, and a lost one is restored from
                there, without any file. It takes as much memory again, and
                needs two parameter servers or more. None: no copies.
            replicate_every_steps: After how many training steps, or scheduled
                functions of a custom loop, copies are updated: so many may be
                lost with a parameter server.
            start_timeout_seconds: How long to wait for the tasks to answer; on
                a cluster that the program is connected to, for every worker
                that answers to run a function.
            min_workers: From how many workers on the job starts: as soon as
                so many, whichever they are, and every parameter server
                answer. The others take part when they answer, as workers that
                were lost and are back; the log names them, and says when each
                joins. Shares of the input are those of all workers. None
                waits for all. A second strategy for a cluster that the
                program is connected to waits for no worker that does not
                answer, and for each that does to run a function.

        Raises:
            ClusterConfigurationError: If the cluster is described wrongly, or
                this task is not its chief.
            ClusterStartTimeoutError: If too few tasks answer in time; it
                lists each that does not, its address and what the connection
                said last.
            PartitioningError: If `variable_partitioner` is not callable.
            ValueError: If an option has no meaning.
        """
        if variable_partitioner is not None and not callable(
            variable_partitioner
        ):
            raise errors.PartitioningError(
                "variable_partitioner must be a callable (shape, dtype, "
                "axis=0), such as tfps.partitioners.MinSizePartitioner(...). "
                f"Received: variable_partitioner={variable_partitioner!r}"
            )
        if max_closures_in_flight_per_worker is not None:
            _require_positive(
                "max_closures_in_flight_per_worker",
                max_closures_in_flight_per_worker,
            )
        calls_at_a_time = _calls_at_a_time(
            max_closures_in_flight_per_worker, prefetch_embeddings
        )
        if steps_per_closure is not None:
            _require_positive("steps_per_closure", steps_per_closure)
        wire_dtype_of = wire.chooser(wire_dtype)
        if sparse_update not in get_args(SparseUpdate):
            raise ValueError(
                f"sparse_update must be one of {get_args(SparseUpdate)}. "
                "Received: "
                f"sparse_update={sparse_update!r}"
            )
        if recovery not in get_args(Recovery):
            raise ValueError(
                'recovery must be "lost" or "consistent". Received: '
                f"recovery={recovery!r}"
            )
        _require_positive("replicate_every_steps", replicate_every_steps)
        if replicate is not None and (
            replicate not in get_args(Replicate) or not in_place_recovery
        ):
            raise ValueError(
                'replicate must be None, or "ps" together with '
                "in_place_recovery=True. Received: "
                f"replicate={replicate!r}, "
                f"in_place_recovery={in_place_recovery!r}"
            )
        self.replicate: Replicate | None = replicate
        self.replicate_every_steps = replicate_every_steps
        # What floors above have run beside a coordinator: `start`, `stop`.
        self.background_work: list[Any] = []
        self.in_place_recovery = in_place_recovery
        self.recovery: Recovery = recovery
        self.ps_recovery_timeout_seconds = ps_recovery_timeout_seconds
        # Set by a floor above; see `construction_hooks`.
        self.ps_restorer: Any = None
        self._sparse_update = sparse_update
        self._cluster_resolver = cluster_resolver or _default_resolver()
        resolver = self._cluster_resolver
        cluster = _cluster_of_chief(resolver)
        quorum.require_min_workers(min_workers, len(cluster.worker_addresses))
        if replicate is not None and len(cluster.ps_addresses) < 2:
            raise errors.ClusterConfigurationError(
                "A second copy of every variable needs another parameter "
                "server: expected two or more. Received: replicate="
                f"{replicate!r}, and {len(cluster.ps_addresses)} in the "
                "cluster. Add one, or leave replicate out."
            )
        self._session = Session.connect(
            cluster,
            look_up=lambda: _cluster_of_chief(resolver),
            timeout_seconds=start_timeout_seconds,
            min_workers=min_workers,
        )
        self._cluster_coordinator: Any = None
        self._max_closures_in_flight_per_worker = calls_at_a_time
        self._prefetch_embeddings = prefetch_embeddings
        self._steps_per_closure = steps_per_closure
        self.communication_fusion = communication_fusion
        # By whose steps they are, such as a model's.
        self._explanations: weakref.WeakKeyDictionary[
            Any, list[Explanation]
        ] = weakref.WeakKeyDictionary()
        self._creator = VariableCreator(
            list(self.ps_devices),
            variable_partitioner,
            wire_dtype_of,
            len(self.worker_devices),
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
        """The chief's connection to the tasks."""
        return self._session

    @property
    def cluster_resolver(self) -> Any:
        """Where the cluster's description came from."""
        return self._cluster_resolver

    @property
    def max_closures_in_flight_per_worker(self) -> int | None:
        """How many closures each worker runs at a time; None: `fit` finds."""
        return self._max_closures_in_flight_per_worker

    @property
    def prefetch_embeddings(self) -> bool | None:
        """Whether the rows of a next step are fetched during a step."""
        return self._prefetch_embeddings

    @property
    def steps_per_closure(self) -> int | None:
        """How many steps `fit` packs into one call; None: it chooses."""
        return self._steps_per_closure

    @property
    def sparse_update(self) -> SparseUpdate:
        """Rows of a table that sparse gradients update; see `__init__`."""
        return self._sparse_update

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of each worker."""
        return tuple(
            self._session.device(task) for task in self._session.cluster.workers
        )

    @property
    def ps_devices(self) -> tuple[str, ...]:
        """The device of each parameter server."""
        return tuple(
            self._session.device(task)
            for task in self._session.cluster.parameter_servers
        )

    def fused(self, function: Any, owner: Any = None) -> Any:
        """What workers run in the place of a concrete function.

        Args:
            function: Traced in the strategy's scope, under no device.
            owner: Whose steps it runs; `explain` knows them by it.

        Returns:
            A concrete function that does the same with fewer messages;
            `function` itself where `communication_fusion` is off.
        """
        if not self.communication_fusion:
            return function
        if owner is not None:
            self._explanations.setdefault(owner, []).append(
                fusion.explain(function)
            )
        return fusion.fuse(function)

    def explain(
        self,
        step: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        print_fn: Callable[[str], Any] | None = print,
    ) -> Explanation:
        """Shows what a step sends between tasks.

        ```python
        model.fit(...)
        strategy.explain(model)
        ```

        Args:
            step: A Keras model that `fit`, `evaluate` or `predict` have run
                on this cluster with `communication_fusion`; or a
                `tf.function` or concrete function that workers run.
            args: Positional arguments of the `tf.function`, or specs of them.
            kwargs: Keyword arguments, likewise.
            print_fn: Called with the table; None: with nothing.

        Returns:
            What is printed: for the function, and for each of its loops and
            branches, the messages in the order in which they leave, how many
            values each carries, and as how many tensors these travel.

        Raises:
            ValueError: If a model has not run here, or `step` is none of
                these.
        """
        if isinstance(step, tf.types.experimental.PolymorphicFunction):
            with (
                self.scope(),
                self.extended.chief_runs.traced_for_workers(),
                tf.device(None),
            ):
                step = step.get_concrete_function(*args, **(kwargs or {}))
        if isinstance(step, tf.types.experimental.ConcreteFunction):
            explanation = fusion.explain(step)
        else:
            explanation = self._explanation_of(step)
        if print_fn is not None:
            print_fn(str(explanation))
            # The value of a notebook's cell is shown, too.
            explanation = dataclasses.replace(explanation, is_printed=True)
        return explanation

    def _explanation_of(self, owner: Any) -> Explanation:
        try:
            known = self._explanations.get(owner, [])
        except TypeError:
            # It cannot be referred to weakly: nobody's steps are its own.
            known = []
        if not known:
            raise ValueError(
                "Expected a tf.function, a concrete function, or a model that "
                "fit, evaluate or predict have run on this cluster with "
                "communication_fusion=True. Received: "
                f"step={owner!r}, "
                f"communication_fusion={self.communication_fusion!r}. "
                "Run a few steps of the model first."
            )
        bodies = [body for each in known for body in each.bodies]
        return Explanation(tuple(bodies))

    @property
    def inventory(self) -> Inventory:
        """The variables that the parameter servers hold."""
        return self._creator.inventory

    def move_to_ps(self, state: WorkerLocalVariable) -> RemoteVariable:
        """Has a parameter server hold what every lane had a copy of.

        Args:
            state: A variable of this strategy.

        Returns:
            The variable that stands for it from now on.
        """
        return self._creator.move_to_ps(state)

    @property
    def bytes_per_ps(self) -> tuple[int, ...]:
        """Bytes of variables placed on each parameter server so far."""
        return self._creator.bytes_per_ps


def _default_resolver() -> Any:
    if tf_config.read_tf_config() is not None:
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return local_cluster.embedded_cluster().cluster_resolver


def _cluster_of_chief(resolver: Any) -> spec.ClusterSpec:
    config = tf_config.from_cluster_resolver(resolver)
    if config.job != "chief":
        raise errors.ClusterConfigurationError(
            "Only the chief creates a ParameterServerStrategy, and this task "
            f"is another. Received: task type={config.job!r}, "
            f"index={config.index}. Call tfps.init() first: workers and "
            "parameter servers serve inside it, and the evaluator is told "
            "what it is."
        )
    return config.cluster


def _calls_at_a_time(chosen: int | None, prefetches: Any) -> int | None:
    """How many calls a worker runs at a time; None: `fit` finds."""
    if prefetches not in (None, True, False):
        raise ValueError(
            "prefetch_embeddings must be True, False or None. Received: "
            f"prefetch_embeddings={prefetches!r}"
        )
    if prefetches is None:
        return chosen
    if chosen is None:
        return None if prefetches else 1
    if prefetches != (chosen > 1):
        raise ValueError(
            "prefetch_embeddings needs two calls of a worker at a time, and "
            "does not happen with one. Received: "
            f"prefetch_embeddings={prefetches!r}, "
            f"max_closures_in_flight_per_worker={chosen!r}. Leave one of them "
            "out."
        )
    return chosen


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"{name} must be a positive integer. Received: {name}={value!r}"
        )

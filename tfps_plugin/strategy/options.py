"""Groups of options of `tfps.ParameterServerStrategy`."""

import dataclasses
import numbers
from typing import Any
from typing import Literal
from typing import get_args

from tfps_plugin import errors
from tfps_plugin.cluster import quorum
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.strategy.monitoring_options import MonitoringOptions
from tfps_plugin.variables.compression import wire
from tfps_plugin.variables.compression.wire import WireDtype

SparseUpdate = Literal["auto", "lazy", "exact", "caught_up"]
Restore = Literal["lost", "consistent"]
Replicate = Literal["ps"]
Placement = Literal["bytes", "traffic"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StartupOptions:
    """Options for waiting for tasks: `startup` of a strategy.

    ```python
    strategy = tfps.ParameterServerStrategy(
        startup=tfps.StartupOptions(min_workers=6)
    )
    ```

    Args:
        timeout_seconds: Seconds to wait for the tasks to answer. If the program
            is connected to the cluster already, seconds to wait for every
            worker that answers to run a function.
        min_workers: Number of workers to start with. The job starts as soon as
            that many workers, in any combination, and every parameter server
            answer. The others join when they answer, like workers that were
            lost and are back; the log names them and says when each joins. The
            input is still sharded over all workers. None waits for all of
            them. A second strategy for a cluster that the program is connected
            to does not wait for workers that do not answer.

    Raises:
        ValueError: If a value has no meaning. The strategy raises it, too, if
            `min_workers` exceeds the number of workers of its cluster.
    """

    timeout_seconds: float = 300.0
    min_workers: int | None = None

    def __post_init__(self) -> None:
        _require_seconds("timeout_seconds", self.timeout_seconds)
        if self.min_workers is not None:
            _require_positive("min_workers", self.min_workers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulingOptions:
    """Options for keeping workers busy: `scheduling` of a strategy.

    ```python
    strategy = tfps.ParameterServerStrategy(
        scheduling=tfps.SchedulingOptions(max_closures_in_flight_per_worker=1)
    )
    ```

    The first two options trade quality for speed: with more closures in
    flight, gradients are of older weights, and the loss falls more slowly or
    jumps (`docs/quality.md` has figures).

    Args:
        max_closures_in_flight_per_worker: Number of scheduled functions that
            each worker runs at the same time. With 1, every worker finishes one
            before it gets the next. None: `fit` begins with one, tries up to
            four once the loss no longer falls fast, and keeps the number that
            makes training at least a quarter faster; evaluation and your own
            scheduled functions run two at a time. For a training loop of your
            own in which quality comes first, set 1. With `tfps.Sync()` and
            `tfps.BoundedStaleness`, training has one, and more are refused.
        prefetch_embeddings: Whether a worker fetches the rows and weights of
            its next step while it computes a step. The next step then lacks the
            update of this one. Prefetching is what two closures in flight do:
            True never runs fewer than two, from the first step on; False never
            runs more than one, scheduled functions included; None prefetches
            whenever more than one is worth it. `tfps.Sync()` and
            `tfps.BoundedStaleness` never prefetch, and refuse True.
        steps_per_closure: Number of training steps that `Model.fit` packs into
            one call of a worker. None chooses by the duration of the first
            steps. `steps_per_execution` of `Model.compile` wins over both.
        slow_worker_fraction: Part of the median rate of the other workers, in
            steps per second, below which a worker is reported as slow, once,
            with what it is slow at. None reports none.

    Raises:
        ValueError: If a value has no meaning, or the first two contradict each
            other.
    """

    max_closures_in_flight_per_worker: int | None = None
    prefetch_embeddings: bool | None = None
    steps_per_closure: int | None = None
    slow_worker_fraction: float | None = 0.5

    def __post_init__(self) -> None:
        if self.slow_worker_fraction is not None:
            _require_fraction("slow_worker_fraction", self.slow_worker_fraction)
        for name in ("max_closures_in_flight_per_worker", "steps_per_closure"):
            value = getattr(self, name)
            if value is not None:
                _require_positive(name, value)
        if self.prefetch_embeddings not in (None, True, False):
            raise ValueError(
                "prefetch_embeddings must be True, False or None. Received: "
                f"prefetch_embeddings={self.prefetch_embeddings!r}"
            )
        most = self.max_closures_in_flight_per_worker
        if None not in (self.prefetch_embeddings, most) and (
            self.prefetch_embeddings != (most != 1)
        ):
            raise ValueError(
                "prefetch_embeddings=True needs two or more closures in flight "
                "per worker, and False needs one. Received: "
                f"prefetch_embeddings={self.prefetch_embeddings!r}, "
                f"max_closures_in_flight_per_worker={most!r}. Leave one of "
                "them out."
            )

    @property
    def closures_in_flight(self) -> int | None:
        """Number of closures that each worker runs; None: `fit` finds it."""
        if self.prefetch_embeddings is not None and (
            not self.prefetch_embeddings
        ):
            return 1
        return self.max_closures_in_flight_per_worker


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommunicationOptions:
    """Options for values on the wire: `communication` of a strategy.

    ```python
    strategy = tfps.ParameterServerStrategy(
        communication=tfps.CommunicationOptions(wire_dtype="bfloat16")
    )
    ```

    Args:
        fusion: Whether values that can travel between two tasks at the same
            time travel as one message (communication fusion). The results are
            the same without it, and a step of a model with many variables takes
            about twice as long. `ParameterServerStrategy.explain` shows the
            messages.
        wire_dtype: The dtype that trainable variables of a wider float dtype
            are rounded to between tasks: "bfloat16", "float16" or "int8", as a
            string or `tf.DType`; None rounds nothing. It applies to the
            gradients, and to the weights and rows that a training step reads.
            The first two halve the bytes. "int8" sends a quarter, plus one
            scale per row, of tables and other matrices of at least eight
            columns, and leaves other variables alone. Parameter servers,
            optimizers and the computation on workers keep the dtype of the
            variable. A callable receives the path of each new variable and
            returns one of these values.

    Raises:
        ValueError: If a value has no meaning.

    References:
        - int8 adds what rounding leaves off a dense gradient to the next one
          (error feedback): Seide et al., "1-Bit Stochastic Gradient Descent
          and its Application to Data-Parallel Distributed Training of Speech
          DNNs", Interspeech 2014.
    """

    fusion: bool = True
    wire_dtype: WireDtype = None

    def __post_init__(self) -> None:
        _require_bool("fusion", self.fusion)
        wire.chooser(self.wire_dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecoveryOptions:
    """Options for the loss of a ps: `recovery` of a strategy.

    ```python
    strategy = tfps.ParameterServerStrategy(
        recovery=tfps.RecoveryOptions(replicate="ps")
    )
    ```

    Args:
        in_place: Whether training waits for a lost parameter server and goes on
            with the values of the newest checkpoint (of a
            `tfps.CheckpointManager` or `tfps.callbacks.BackupAndRestore`). If
            False, or without a checkpoint, training raises
            `ParameterServerLostError`.
        restore: The variables that are set back to the checkpoint: "lost",
            those of the lost parameter server, while the others keep what they
            have learned since; or "consistent", all of the checkpoint.
            `tfps.Sync()` always has "consistent".
        timeout_seconds: Seconds that training waits for a lost parameter
            server.
        replicate: "ps" keeps a copy of every variable and shard on the next
            parameter server, from which a lost one is restored without any
            file. This doubles the memory and needs at least two parameter
            servers. Needs restore="lost", so `tfps.Sync()` refuses it. None
            keeps no copies.
        replicate_every_steps: Number of training steps, or scheduled functions
            of a custom loop, between two updates of the copies: the most that
            is lost with a parameter server.

    Raises:
        ValueError: If a value has no meaning.
        ClusterConfigurationError: Raised by the strategy, if `replicate` is
            "ps" and its cluster has a single parameter server.
    """

    in_place: bool = True
    restore: Restore = "lost"
    timeout_seconds: float = 600.0
    replicate: Replicate | None = None
    replicate_every_steps: int = 100

    def __post_init__(self) -> None:
        _require_bool("in_place", self.in_place)
        if self.restore not in get_args(Restore):
            raise ValueError(
                'restore must be "lost" or "consistent". Received: '
                f"restore={self.restore!r}"
            )
        _require_seconds("timeout_seconds", self.timeout_seconds)
        if self.replicate is not None and (
            self.replicate not in get_args(Replicate) or not self.in_place
        ):
            raise ValueError(
                'replicate must be None, or "ps" together with in_place=True. '
                f"Received: replicate={self.replicate!r}, "
                f"in_place={self.in_place!r}"
            )
        if self.replicate is not None and self.restore == "consistent":
            raise ValueError(
                "With a parameter server, the copies that it held of another "
                "one are lost, so that copies cannot set all variables back "
                'together. Expected restore="lost", or replicate=None. '
                f"Received: restore={self.restore!r}, "
                f"replicate={self.replicate!r}. To set all variables back, "
                "keep checkpoints, with tfps.callbacks.BackupAndRestore."
            )
        _require_positive("replicate_every_steps", self.replicate_every_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """All groups of options of one strategy.

    Args:
        startup: Options for waiting for tasks.
        scheduling: Options for keeping workers busy.
        communication: Options for values on the wire.
        recovery: Options for the loss of a parameter server.
        monitoring: Options for watching the job.

    Raises:
        TypeError: If a group is of another class.
    """

    startup: StartupOptions = dataclasses.field(default_factory=StartupOptions)
    scheduling: SchedulingOptions = dataclasses.field(
        default_factory=SchedulingOptions
    )
    communication: CommunicationOptions = dataclasses.field(
        default_factory=CommunicationOptions
    )
    recovery: RecoveryOptions = dataclasses.field(
        default_factory=RecoveryOptions
    )
    monitoring: MonitoringOptions = dataclasses.field(
        default_factory=MonitoringOptions
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            expected: Any = field.type
            if not isinstance(value, expected):
                raise TypeError(
                    f"{field.name} must be a tfps.{expected.__name__}, or None "
                    f"for the defaults. Received: {field.name}={value!r}"
                )

    def require_cluster(self, cluster: ClusterSpec) -> None:
        """Refuses a cluster that cannot do what the options ask for.

        Args:
            cluster: The cluster of the strategy.

        Raises:
            ValueError: If it has fewer workers than `min_workers`.
            ClusterConfigurationError: If it has no second parameter server for
                the copies.
        """
        quorum.require_min_workers(
            self.startup.min_workers, len(cluster.worker_addresses)
        )
        replicate = self.recovery.replicate
        if replicate is not None and len(cluster.ps_addresses) < 2:
            raise errors.ClusterConfigurationError(
                "A second copy of every variable needs another parameter "
                f"server: expected two or more. Received: {replicate=!r}, and "
                f"{len(cluster.ps_addresses)} in the cluster. Add one, or "
                "leave replicate out of tfps.RecoveryOptions."
            )


def require_sparse_update(value: object) -> None:
    """Refuses an unknown form of `sparse_update`.

    Args:
        value: The value that the user gave.

    Raises:
        ValueError: If it is unknown.
    """
    _require_one_of("sparse_update", value, get_args(SparseUpdate))


def require_placement(value: object) -> None:
    """Refuses an unknown form of `placement`.

    Args:
        value: The value that the user gave.

    Raises:
        ValueError: If it is unknown.
    """
    _require_one_of("placement", value, get_args(Placement))


def _require_one_of(
    name: str, value: object, allowed: tuple[object, ...]
) -> None:
    if value not in allowed:
        raise ValueError(
            f"{name} must be one of {allowed}. Received: {name}={value!r}"
        )


def _require_positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(
            f"{name} must be a positive integer. Received: {name}={value!r}"
        )


def _require_bool(name: str, value: object) -> None:
    # Configurations may say 0 or 1.
    if value not in (True, False):
        raise ValueError(
            f"{name} must be True or False. Received: {name}={value!r}"
        )


def _require_fraction(name: str, value: Any) -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and 0 < value < 1):
        raise ValueError(
            f"{name} must be a number between 0 and 1, or None. Received: "
            f"{name}={value!r}"
        )


def _require_seconds(name: str, value: Any) -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (is_number and value >= 0):
        raise ValueError(
            f"{name} must be a number of seconds, zero or more. Received: "
            f"{name}={value!r}"
        )

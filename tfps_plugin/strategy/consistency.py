"""Rules by which workers wait for each other: `consistency` of a strategy."""

import dataclasses
import numbers
from typing import Any

from tfps_plugin import errors
from tfps_plugin.strategy.options import SparseUpdate
from tfps_plugin.strategy.options import StrategyOptions

_SPARE_WORKERS = 4


@dataclasses.dataclass(frozen=True)
class Async:
    """Workers never wait: gradients are applied when they arrive.

    ```python
    strategy = tfps.ParameterServerStrategy(consistency=tfps.Async())
    ```

    Args:
        staleness_scaling: Whether each parameter server divides the learning
            rate of an update by its staleness: the number of updates of the
            same variables by other steps between the step's reads and its
            update. Updates whose staleness is 0 or 1 keep the learning rate.
        local_steps: Number of steps of `fit` that a worker makes on weights of
            its own, before it sends the sum of their gradients and reads the
            weights again. See `docs/local_steps.md`.

    Raises:
        TypeError: If `staleness_scaling` is no boolean.
        ValueError: If `local_steps` is no positive number of steps.

    References:
        - Dean et al., "Large Scale Distributed Deep Networks", NeurIPS 2012.
        - Zhang et al., "Staleness-aware Async-SGD for Distributed Deep
          Learning", IJCAI 2016.
    """

    staleness_scaling: bool = False
    local_steps: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.staleness_scaling, bool):
            raise TypeError(
                "staleness_scaling must be True or False. Received: "
                f"staleness_scaling={self.staleness_scaling!r}"
            )
        number = self.local_steps
        is_integer = isinstance(number, numbers.Integral)
        if not is_integer or isinstance(number, bool) or number < 1:
            raise ValueError(
                "local_steps must be a number of steps, one or more. Received: "
                f"local_steps={number!r}"
            )


@dataclasses.dataclass(frozen=True)
class Sync:
    """Workers make every step together.

    ```python
    strategy = tfps.ParameterServerStrategy(consistency=tfps.Sync())
    ```

    Each step is one update with the mean gradient over the examples of all
    workers. With `sparse_update="exact"`, and layers and losses that treat
    each example by itself, the weights are those of one process that trains
    with all batches of the step as one. `docs/synchronous_training.md` says
    what differs otherwise.

    Args:
        backup_workers: Number of workers whose gradients a step does without:
            it takes those of the others, which arrive first, on every
            parameter server of the same workers. Late gradients are dropped
            and counted, and their worker goes on with the next step. One slow
            worker then does not slow down the others.

    Raises:
        ValueError: If `backup_workers` is no number of workers.

    References:
        - Chen et al., "Revisiting Distributed Synchronous SGD", 2016.
    """

    backup_workers: int = 0

    def __post_init__(self) -> None:
        number = self.backup_workers
        is_integer = isinstance(number, numbers.Integral)
        if not is_integer or isinstance(number, bool) or number < 0:
            raise ValueError(
                "backup_workers must be a number of workers, zero or more. "
                f"Received: backup_workers={number!r}"
            )


@dataclasses.dataclass(frozen=True)
class BoundedStaleness:
    """Workers wait for those that are far behind (stale synchronous parallel).

    ```python
    strategy = tfps.ParameterServerStrategy(
        consistency=tfps.BoundedStaleness(max_staleness=8)
    )
    ```

    A worker applies its gradients when it has them, as with `tfps.Async()`. But
    it begins a step only if it is no more than `max_staleness` steps ahead of
    the slowest worker; completed steps count. A worker that is lost, or whose
    input has ended, holds nobody.

    Args:
        max_staleness: Number of steps. 0: all workers make a step before any
            begins the next one.

    Raises:
        ValueError: If `max_staleness` is no number of steps.

    References:
        - Ho et al., "More Effective Distributed ML via a Stale Synchronous
          Parallel Parameter Server", NeurIPS 2013.
    """

    max_staleness: int

    def __post_init__(self) -> None:
        number = self.max_staleness
        is_integer = isinstance(number, numbers.Integral)
        if not is_integer or isinstance(number, bool) or number < 0:
            raise ValueError(
                "max_staleness must be a number of steps, zero or more. "
                f"Received: max_staleness={number!r}"
            )


Consistency = Async | Sync | BoundedStaleness


def local_steps_of(consistency: Any) -> int:
    """Returns the number of steps of a local round.

    Args:
        consistency: The consistency of a strategy; None: it has none.
    """
    return int(consistency.local_steps) if isinstance(consistency, Async) else 1


def updates_at_once(consistency: Consistency) -> bool:
    """Returns whether each step applies its gradients when it has them.

    Otherwise steps wait for other workers, or for the end of a local round.

    Args:
        consistency: The consistency of a strategy.
    """
    return isinstance(consistency, Async) and local_steps_of(consistency) == 1


def checked(
    consistency: Consistency | None,
    options: StrategyOptions,
    sparse_update: SparseUpdate,
) -> tuple[Consistency, StrategyOptions]:
    """Refuses options that a consistency cannot keep.

    Args:
        consistency: The value that the user gave; None: `Async()`.
        options: The other options of the strategy.
        sparse_update: Likewise.

    Returns:
        The consistency, and the options that it needs: after the loss of a
        parameter server, synchronous training sets all variables back.

    Raises:
        TypeError: If `consistency` is of another class.
        ValueError: If another option contradicts it.
        UnsupportedError: If another option is not supported with it.
    """
    if consistency is None:
        consistency = Async()
    if not isinstance(consistency, Consistency):
        raise TypeError(
            "consistency must be tfps.Async(), tfps.Sync() or "
            "tfps.BoundedStaleness(...), or None for the default. Received: "
            f"consistency={consistency!r}"
        )
    if isinstance(consistency, Async):
        _require_scalable(consistency, sparse_update)
        _require_local(consistency, options, sparse_update)
        return consistency, options
    scheduling = options.scheduling
    in_flight = scheduling.max_closures_in_flight_per_worker
    if scheduling.prefetch_embeddings or in_flight not in (None, 1):
        raise ValueError(
            "A worker that waits for others makes one step at a time. Expected "
            "the default of max_closures_in_flight_per_worker and "
            "prefetch_embeddings. "
            f"Received: consistency={consistency}, scheduling={scheduling}. "
            "Leave them out of tfps.SchedulingOptions."
        )
    if isinstance(consistency, BoundedStaleness):
        return consistency, options
    if options.recovery.replicate is not None:
        raise ValueError(
            "Copies of a parameter server may be of other steps than the "
            "variables of the others, and synchronous training sets all "
            "variables back together. Expected replicate=None. Received: "
            f"consistency={consistency}, recovery={options.recovery}. Keep "
            "checkpoints, with tfps.callbacks.BackupAndRestore."
        )
    if sparse_update == "caught_up":
        raise errors.UnsupportedError(
            'sparse_update="caught_up" is not supported with synchronous '
            'training. Expected "exact", which has the same numbers, "lazy" or '
            f'"auto". Received: consistency={consistency}, '
            f"sparse_update={sparse_update!r}"
        )
    recovery = dataclasses.replace(options.recovery, restore="consistent")
    return consistency, dataclasses.replace(options, recovery=recovery)


def _require_scalable(consistency: Async, sparse_update: SparseUpdate) -> None:
    """Refuses staleness scaling with rows that make up for earlier steps.

    Raises:
        UnsupportedError: If both are asked for.
    """
    if consistency.staleness_scaling and sparse_update == "caught_up":
        raise errors.UnsupportedError(
            "Rows that catch up do not know the staleness of the steps that "
            'they make up for. Expected sparse_update="exact", "lazy" or '
            f'"auto". Received: consistency={consistency}, '
            f"sparse_update={sparse_update!r}"
        )


def _require_local(
    consistency: Async, options: StrategyOptions, sparse_update: SparseUpdate
) -> None:
    """Refuses options that do not go together with local steps.

    Raises:
        UnsupportedError: If rows were to catch up.
        ValueError: If calls of workers would end within a round.
    """
    if local_steps_of(consistency) == 1:
        return
    if sparse_update == "caught_up":
        raise errors.UnsupportedError(
            "A row that catches up knows the step that has looked it up, and "
            "local steps apply the gradients of several together. Expected "
            'sparse_update="exact", which has the same numbers, "lazy" or '
            f'"auto". Received: consistency={consistency}, '
            f"sparse_update={sparse_update!r}"
        )
    require_whole_rounds(
        consistency,
        "steps_per_closure of tfps.SchedulingOptions",
        options.scheduling.steps_per_closure,
    )


def require_whole_rounds(
    consistency: Consistency, name: str, num_steps: int | None
) -> None:
    """Refuses a number of steps of a call that is no multiple of local steps.

    Args:
        consistency: The consistency of the strategy.
        name: Name of the option that says the number.
        num_steps: Number of steps that the user has set; None: not set.

    Raises:
        ValueError: If calls of workers would end within a round.
    """
    local_steps = local_steps_of(consistency)
    if num_steps is None or num_steps % local_steps == 0:
        return
    raise ValueError(
        "A call of a worker makes whole rounds of local steps. Expected a "
        f"multiple of {local_steps} as {name}. Received: {num_steps}, with "
        f"consistency=tfps.{consistency}. Change one of them, or leave {name} "
        "out."
    )


def worker_capacity(num_workers: int) -> int:
    """Returns the number of workers that a step of several is traced for.

    A worker that is added takes part in such a step without another trace, as
    long as there is room for it. A step of one worker may keep states that
    nothing can put together, so it has no room for others.

    Args:
        num_workers: The highest index of a worker, plus one.
    """
    if num_workers == 1:
        return 1
    return 2 * num_workers + _SPARE_WORKERS


def require_workers(consistency: Consistency, num_workers: int) -> None:
    """Refuses backup workers if there is no other worker.

    Args:
        consistency: The consistency.
        num_workers: Number of workers of the cluster.

    Raises:
        ValueError: If there are not enough workers.
    """
    if not isinstance(consistency, Sync):
        return
    if 0 < num_workers <= consistency.backup_workers:
        raise ValueError(
            "A step does without the gradients of backup_workers workers, and "
            "needs those of another one. Expected fewer backup workers than "
            f"the {num_workers} workers of the cluster. Received: "
            f"backup_workers={consistency.backup_workers}. Give fewer, or add "
            "workers."
        )

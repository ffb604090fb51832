"""Makes the plan of a training script."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.cluster.machine.usable_cores import usable_cores
from tfps_plugin.planning import memory
from tfps_plugin.planning import plan as plans
from tfps_plugin.planning import rehearsal
from tfps_plugin.planning import step_messages
from tfps_plugin.planning.costs import Costs
from tfps_plugin.planning.cut_step import CutStep
from tfps_plugin.planning.dry_step import DryStep
from tfps_plugin.planning.machines import Machines
from tfps_plugin.planning.memory import Held
from tfps_plugin.planning.memory import Keeping
from tfps_plugin.planning.plan import Plan
from tfps_plugin.planning.rehearsal import Rehearsed
from tfps_plugin.planning.work import PsWork
from tfps_plugin.planning.work import StepWork
from tfps_plugin.strategy.consistency import Async
from tfps_plugin.strategy.consistency import local_steps_of
from tfps_plugin.training import step_build
from tfps_plugin.variables.initial_values import initialization
from tfps_plugin.variables.storage import on_disk


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """Knowledge of the user of a plan, which nothing can measure here.

    Attributes:
        step_seconds: Time that a worker computes a step; None: that of this
            machine.
        measure_seconds: About how long to measure it.
        ps_memory_bytes: Memory of the machine of a ps; None: unknown.
        checkpoints: Whether checkpoints are written.
        increments: Whether some of them have only what has changed.
    """

    step_seconds: float | None = None
    measure_seconds: float = 3.0
    ps_memory_bytes: int | None = None
    checkpoints: bool = True
    increments: bool = False


def make(
    script: str,
    arguments: Sequence[str],
    machines: Machines,
    costs: Costs,
    known: Known,
) -> Plan:
    """Makes the plan of a script: it runs until its first `fit`.

    Args:
        script: Path of the script.
        arguments: Its arguments.
        machines: The cluster to plan for.
        costs: Costs of the runtime.
        known: What the user knows.

    Returns:
        The plan.

    Raises:
        PlanError: If nothing can be planned for the script.
    """
    with rehearsal.rehearsing(script, arguments, machines.num_ps) as rehearsed:
        return of_rehearsed(script, rehearsed, machines, costs, known)


def of_rehearsed(
    script: str,
    rehearsed: Rehearsed,
    machines: Machines,
    costs: Costs,
    known: Known,
) -> Plan:
    """Makes the plan of a model and its step.

    Args:
        script: Path of the script.
        rehearsed: The model and its step.
        machines: The cluster to plan for.
        costs: Costs of the runtime.
        known: What the user knows.

    Raises:
        PlanError: If nothing can be planned for them.
    """
    strategy = rehearsed.strategy
    _require_plain(strategy)
    # Tasks that share a machine share its cores, too.
    threads = 0 if machines.shared_cores is None else 1
    work, assumptions = work_of(rehearsed, known, threads)
    keeping = Keeping(
        checkpoints=known.checkpoints,
        increments=known.increments,
        standby=strategy.recovery.replicate == "ps",
        moves=strategy.elastic,
    )
    on_the_way = [
        machines.num_workers * work.ps[ps].num_bytes if ps in work.ps else 0
        for ps in range(machines.num_ps)
    ]
    return plans.make(
        script,
        machines,
        work,
        tuple(
            memory.of_all(
                held_by(rehearsed), machines.num_ps, keeping, on_the_way
            )
        ),
        costs,
        tuple(assumptions),
        ps_memory_bytes=known.ps_memory_bytes,
        wire_is_narrow=strategy.communication.wire_dtype is not None,
    )


def work_of(
    rehearsed: Rehearsed, known: Known, threads: int = 0
) -> tuple[StepWork, list[str]]:
    """Returns the work of a step, and what that rests on.

    Args:
        rehearsed: The model and its step.
        known: What the user knows.
        threads: Number of threads of an operation; 0: one for each core.

    Raises:
        PlanError: If no batch can be read, or the step cannot be cut.
    """
    if rehearsed.batch is None:
        raise errors.PlanError(
            "A plan needs one batch, for the rows that a step looks up and "
            "the size of its values. Expected input that the chief can read. "
            f"Received: {rehearsed.why_no_batch}"
        )
    seconds = known.measure_seconds if known.step_seconds is None else 0.0
    dry_step = DryStep(CutStep(rehearsed.step, rehearsed.batch), threads)
    try:
        dry = dry_step.run(seconds)
    finally:
        dry_step.close()
    compute = known.step_seconds
    if compute is None:
        compute = dry.seconds or 0.0
        assumptions = [
            f"A worker computes a step in {1000 * compute:.2f} ms, as "
            f"measured on this machine ({usable_cores()} cores, without the "
            "updates, which parameter servers make)."
        ]
    else:
        assumptions = [
            f"A worker computes a step in {1000 * compute:.2f} ms, as "
            "--step-milliseconds says."
        ]
    sent = step_messages.of_step(
        rehearsed.strategy.explain(rehearsed.model, print_fn=None)
    )
    assumptions.append(
        f"Each step looks up {dry.rows:,} distinct rows, as the first batch "
        "of the input does."
    )
    if rehearsed.chief_reads:
        assumptions.append(
            "The chief reads each batch and sends it to a worker. Its time "
            "for that, and these bytes, are not counted; with a "
            "tfps.DatasetCreator, workers read their own input."
        )
    if sent.inner:
        assumptions.append(
            f"Loops and branches of the step send {sent.inner:,} messages, "
            "counted as if none of them ran."
        )
    nothing = PsWork()
    ps = {
        index: dataclasses.replace(
            dry.ps.get(index, nothing),
            messages=each.messages,
            operations=each.operations,
        )
        for index, each in sent.ps.items()
    }
    cpu = compute if dry.cpu_seconds is None else dry.cpu_seconds
    work = StepWork(ps, compute, cpu, sent.waves, dry.rows, dry.lookups)
    return work, assumptions


def held_by(rehearsed: Rehearsed) -> list[Held]:
    """Returns all variables and shards in the memory of parameter servers.

    Args:
        rehearsed: The model.
    """
    strategy = rehearsed.strategy
    slots: set[int] = set()
    everywhere: set[int] = set()
    for optimizer in step_build.optimizers_of(rehearsed.model):
        slots |= {id(each) for v in optimizer.variables for each in _shards(v)}
        everywhere |= _everywhere(optimizer.variables, strategy.ps_devices)
    everywhere |= _everywhere(rehearsed.model.variables, strategy.ps_devices)
    return [
        Held(
            ps,
            # Its checkpoint and its standby copy have the same limit.
            on_disk.bytes_in_memory(
                each, initialization.num_bytes(each.shape, each.dtype)
            ),
            each.shape[0] if each.shape.rank > 1 else 0,
            id(each) in slots,
            id(each) in everywhere,
        )
        for ps, device in enumerate(strategy.ps_devices)
        for each in strategy.inventory.on([device])
    ]


def _shards(variable: Any) -> Sequence[Any]:
    """Returns the variables of parameter servers that a variable is made of."""
    value = keras_compat.value_of(variable)
    shards: Sequence[Any] = getattr(value, "shards", [])
    return shards


def _everywhere(variables: Any, devices: Sequence[str]) -> set[int]:
    """Returns the ids of shards of variables that are on each ps."""
    if len(devices) < 2:
        return set()
    return {
        id(shard)
        for variable in variables
        for shard in _shards(variable)
        if {each.device for each in _shards(variable)} == {*devices}
    }


def _require_plain(strategy: Any) -> None:
    """Refuses a strategy whose steps are not those that plans describe."""
    consistency = strategy.consistency
    if not isinstance(consistency, Async) or local_steps_of(consistency) > 1:
        raise errors.PlanError(
            "Plans are for asynchronous steps alone, because workers that "
            "wait for each other need another model. Expected "
            f"consistency=tfps.Async(). Received: {consistency}"
        )
    if len(strategy.replica_devices) > 1:
        raise errors.PlanError(
            "Plans are for one replica a worker. Expected "
            "replicas_per_worker=1. Received: "
            f"{len(strategy.replica_devices)} replicas"
        )

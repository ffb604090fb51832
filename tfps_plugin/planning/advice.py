"""Suggestions for a plan. Pure."""

import math
from collections.abc import Sequence

from tfps_plugin.planning import rates
from tfps_plugin.planning.machines import Machines
from tfps_plugin.planning.memory import PsMemory
from tfps_plugin.planning.rates import Forecast

# A parameter server that has so many times the mean work is a hot one.
_HOT = 1.25
# One that holds so much of what the fullest one holds has nothing to do.
_LITTLE = 0.01
_ALMOST = 0.9
# From about this number on, joining lookups was seen to pay.
_MANY_LOOKUPS = 26
_COMPUTE = (rates.WORKERS, rates.PS, rates.CORES)
# A resource with less room than this, as a multiple of the bound, is the next.
_NEXT = 1.5


def suggest(
    forecast: Forecast,
    machines: Machines,
    memory: Sequence[PsMemory],
    ps_loads: Sequence[float],
    ps_memory_bytes: int | None,
    wire_is_narrow: bool,
    lookups: int = 0,
) -> list[str]:
    """Returns sentences on how to change a cluster or its options.

    Args:
        forecast: The prediction.
        machines: The cluster.
        memory: Memory of each parameter server.
        ps_loads: Seconds of each parameter server for a step, by whatever
            bounds it.
        ps_memory_bytes: Memory of the machine of a ps; None: unknown.
        wire_is_narrow: Whether values already travel in fewer bits.
        lookups: Number of lookups of a step, each in a shard of a table.
    """
    found = []
    most = max((each.total for each in memory), default=0)
    if ps_memory_bytes is not None and most > ps_memory_bytes:
        found.append(_for_memory(memory, ps_memory_bytes))
    found += _for_idle(memory)
    limits = dict(forecast.limits)
    bound = limits.pop(forecast.bound)
    following = min(limits, key=limits.__getitem__, default=None)
    rest = limits[following] if following is not None else math.inf
    hot = _hot(ps_loads)
    of_ps = min(
        forecast.limits.get(name, math.inf)
        for name in (rates.PS, rates.PS_NETWORK)
    )
    if hot > _HOT and of_ps < _NEXT * bound:
        found.append(
            f"The busiest parameter server has {hot:.1f} times the mean "
            "work: cut the largest variables into more shards "
            "(max_shards of the partitioner), or try "
            'placement="traffic".'
        )
    # More of them do not help while one has most of the work.
    elif forecast.bound in (rates.PS, rates.PS_NETWORK):
        wanted = _workers_limit(forecast)
        if wanted > bound:
            number = math.ceil(machines.num_ps * wanted / bound)
            found.append(
                f"Use about {number} parameter servers in place of "
                f"{machines.num_ps}, if the work divides evenly; or about "
                f"{max(1, int(machines.num_workers * bound / wanted))} "
                "workers keep these busy."
            )
    if forecast.bound in (rates.PS_NETWORK, rates.WORKER_NETWORK) and (
        not wire_is_narrow
    ):
        found.append(
            "Send fewer bits: tfps.CommunicationOptions("
            'wire_dtype="bfloat16") halves most bytes.'
        )
    if lookups >= _MANY_LOOKUPS and forecast.bound in _COMPUTE:
        found.append(
            f"A step has {lookups:,} lookups in shards of tables: one "
            "tfps.layers.DistributedEmbedding in place of many layers makes "
            "them few."
        )
    if forecast.bound == rates.CHIEF:
        found.append(
            "The chief starts calls as fast as it can: let a call make more "
            "steps (steps_per_closure of tfps.SchedulingOptions), or use "
            "larger batches."
        )
    if forecast.bound == rates.LATENCY:
        found.append(
            "Workers mostly wait for messages: use larger batches, or let "
            "each run several calls (max_closures_in_flight_per_worker of "
            "tfps.SchedulingOptions)."
        )
    if forecast.bound == rates.WORKERS and math.isfinite(rest):
        room = int(machines.num_workers * rest / bound)
        if room > machines.num_workers:
            found.append(
                f"Workers compute most of the time, as they should. Up to "
                f"about {room} of them can be used before {following} "
                "is the limit."
            )
    if forecast.bound == rates.CORES:
        found.append(
            "All tasks share the cores of one machine: more workers do not "
            "make it faster."
        )
    if forecast.steps_per_second < _ALMOST * bound and not found:
        found.append(
            f"{following} is nearly a limit, too: tasks wait for each other "
            "part of the time."
        )
    return found


def _for_memory(memory: Sequence[PsMemory], limit: int) -> str:
    """Returns the number of parameter servers whose memory is enough."""
    base = max(each.base + each.messages for each in memory)
    held = sum(each.total - each.base - each.messages for each in memory)
    largest = max(each.total for each in memory)
    text = (
        f"The fullest parameter server may take {largest / 2**30:.1f} GiB, "
        f"and has {limit / 2**30:.1f}."
    )
    if limit <= base:
        return f"{text} Messages of so many workers alone do not fit."
    number = max(len(memory) + 1, math.ceil(held / (limit - base)))
    return (
        f"{text} Use at least {number} parameter servers, with tables cut "
        "into as many shards (max_shards of the partitioner)."
    )


def _for_idle(memory: Sequence[PsMemory]) -> list[str]:
    """Returns a sentence if some parameter servers hold almost nothing."""
    sizes = [each.variables + each.slots for each in memory]
    idle = sum(each < _LITTLE * max(sizes, default=0) for each in sizes)
    if not idle:
        return []
    return [
        f"{idle:,} of {len(sizes):,} parameter servers hold almost nothing: "
        f"cut tables into {len(sizes):,} shards (max_shards of the "
        "partitioner), or use fewer parameter servers."
    ]


def _hot(loads: Sequence[float]) -> float:
    """Returns the work of the busiest ps as a multiple of the mean."""
    mean = sum(loads) / len(loads) if loads else 0.0
    return max(loads) / mean if mean else 1.0


def _workers_limit(forecast: Forecast) -> float:
    """Returns the steps per second that workers alone could make."""
    return min(
        value
        for name, value in forecast.limits.items()
        if name in (rates.WORKERS, rates.WORKER_NETWORK, rates.LATENCY)
    )

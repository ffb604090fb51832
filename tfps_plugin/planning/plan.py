"""A plan of a job: what it holds, sends, and how fast it may be. Pure."""

import dataclasses
from typing import Any

from tfps_plugin.planning import advice
from tfps_plugin.planning import rates
from tfps_plugin.planning.costs import Costs
from tfps_plugin.planning.machines import Machines
from tfps_plugin.planning.memory import PsMemory
from tfps_plugin.planning.rates import Forecast
from tfps_plugin.planning.work import StepWork

# Numbers of workers for which a plan predicts the speed, too.
_SCALE = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A plan of a job.

    Attributes:
        script: The program.
        machines: The cluster.
        memory: Memory of each parameter server.
        work: Work of a step.
        ps_seconds: Processor time of each parameter server for a step.
        forecast: Predicted speed.
        scale: Predicted speed for other numbers of workers.
        assumptions: What the numbers rest on, a sentence each.
        suggestions: What to change, a sentence each.
    """

    script: str
    machines: Machines
    memory: tuple[PsMemory, ...]
    work: StepWork
    ps_seconds: tuple[float, ...]
    forecast: Forecast
    scale: tuple[Forecast, ...]
    assumptions: tuple[str, ...]
    suggestions: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns it as objects of JSON; an infinite limit is None."""
        found: dict[str, Any] = _finite(dataclasses.asdict(self))
        for each, made in zip(found["memory"], self.memory, strict=True):
            each["total"] = made.total
        return found


def make(
    script: str,
    machines: Machines,
    work: StepWork,
    memory: tuple[PsMemory, ...],
    costs: Costs,
    assumptions: tuple[str, ...] = (),
    *,
    ps_memory_bytes: int | None = None,
    wire_is_narrow: bool = False,
) -> Plan:
    """Makes a plan of what is known of a step and of the cluster.

    Args:
        script: The program.
        machines: The cluster.
        work: Work of a step.
        memory: Memory of each parameter server.
        costs: Costs of the runtime.
        assumptions: What the numbers rest on.
        ps_memory_bytes: Memory of the machine of a ps; None: unknown.
        wire_is_narrow: Whether values already travel in fewer bits.
    """
    forecast = rates.forecast(work, machines, costs)
    times = rates.step_times(work, machines, costs, forecast.steps_per_call)
    by_ps = range(machines.num_ps)
    loads = times.ps_network if forecast.bound == rates.PS_NETWORK else times.ps
    numbers = sorted({*_SCALE, machines.num_workers})
    return Plan(
        script,
        machines,
        memory,
        work,
        tuple(times.ps.get(index, 0.0) for index in by_ps),
        forecast,
        tuple(
            rates.forecast(
                work, dataclasses.replace(machines, num_workers=number), costs
            )
            for number in numbers
        ),
        assumptions,
        tuple(
            advice.suggest(
                forecast,
                machines,
                memory,
                [loads.get(index, 0.0) for index in by_ps],
                ps_memory_bytes,
                wire_is_narrow,
                work.lookups,
            )
        ),
    )


def _finite(value: Any) -> Any:
    """Returns nested objects with None for infinite numbers."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if value == float("inf") else value

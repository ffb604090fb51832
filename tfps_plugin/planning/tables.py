"""A plan as tables for a terminal."""

import math
from collections.abc import Mapping

import rich.box
import rich.console
import rich.table

from tfps_plugin.planning.memory import PsMemory
from tfps_plugin.planning.plan import Plan

# A table of parameter servers shows so many; the rest is one line.
_MOST_PS = 16
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_PARTS = (
    "variables",
    "slots",
    "checkpoint",
    "standby",
    "marks",
    "moving",
    "messages",
    "base",
)


def show(plan: Plan, console: rich.console.Console) -> None:
    """Prints a plan.

    Args:
        plan: The plan.
        console: Where to print it.
    """
    machines = plan.machines
    console.print(
        f"Plan of {plan.script}: {machines.num_workers:,} workers, "
        f"{machines.num_ps:,} parameter servers",
        highlight=False,
        markup=False,
    )
    console.print(_memory(plan))
    console.print(_traffic(plan))
    console.print(_limits(plan))
    console.print(_scale(plan))
    for title, sentences in (
        ("Assumptions", plan.assumptions),
        ("Suggestions", plan.suggestions),
    ):
        if sentences:
            console.print(f"{title}:", highlight=False)
        for each in sentences:
            console.print(f"  - {each}", highlight=False, markup=False)


def _table(title: str, *columns: str) -> rich.table.Table:
    table = rich.table.Table(
        title=title, title_justify="left", box=rich.box.SIMPLE
    )
    table.add_column(columns[0])
    for each in columns[1:]:
        table.add_column(each, justify="right")
    return table


def _memory(plan: Plan) -> rich.table.Table:
    """Returns the memory of each ps; parts that are zero everywhere are left
    out."""
    parts = [
        name
        for name in _PARTS
        if any(getattr(each, name) for each in plan.memory)
    ]
    table = _table("Memory, at most", "", *parts, "total")

    def row(name: str, memory: PsMemory) -> None:
        table.add_row(
            name,
            *(size(getattr(memory, part)) for part in parts),
            size(memory.total),
        )

    for index, memory in enumerate(plan.memory[:_MOST_PS]):
        row(f"ps {index}", memory)
    if len(plan.memory) > _MOST_PS:
        fullest = max(plan.memory, key=lambda each: each.total)
        row(f"fullest of {len(plan.memory):,}", fullest)
    return table


def _traffic(plan: Plan) -> rich.table.Table:
    work = plan.work
    table = _table(
        "One step of one worker",
        "",
        "messages",
        "bytes to it",
        "bytes from it",
        "operations",
        "CPU ms",
    )
    for index, each in list(work.ps.items())[:_MOST_PS]:
        table.add_row(
            f"ps {index}",
            f"{each.messages:,}",
            f"{each.bytes_in:,}",
            f"{each.bytes_out:,}",
            f"{each.operations:,}",
            f"{1000 * plan.ps_seconds[index]:.2f}",
        )
    table.add_row(
        "all ps",
        f"{work.messages:,}",
        f"{work.bytes_out:,}",
        f"{work.bytes_in:,}",
        f"{sum(each.operations for each in work.ps.values()):,}",
        f"{1000 * sum(plan.ps_seconds):.2f}",
    )
    return table


def _limits(plan: Plan) -> rich.table.Table:
    forecast = plan.forecast
    table = _table("What bounds it", "resource", "at most steps/s", "in use")
    for name, limit in _sorted(forecast.limits):
        used = forecast.steps_per_second / limit
        mark = "  <- the limit" if name == forecast.bound else ""
        table.add_row(f"{name}{mark}", _number(limit), f"{used:.0%}")
    table.add_row("predicted", _number(forecast.steps_per_second), "")
    return table


def _scale(plan: Plan) -> rich.table.Table:
    table = _table(
        "Other numbers of workers", "workers", "steps/s", "per worker", "limit"
    )
    for each in plan.scale:
        table.add_row(
            f"{each.num_workers:,}",
            _number(each.steps_per_second),
            _number(each.steps_per_second / each.num_workers),
            each.bound,
        )
    return table


def _sorted(limits: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(limits.items(), key=lambda item: item[1])


def _number(value: float) -> str:
    if math.isinf(value):
        return "no limit"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def size(num_bytes: float) -> str:
    """Returns a number of bytes for people, such as "1.5 GiB"."""
    units = iter(_UNITS)
    unit = next(units)
    while num_bytes >= 1024 and (larger := next(units, None)) is not None:
        num_bytes, unit = num_bytes / 1024, larger
    digits = 0 if unit == _UNITS[0] else 1
    return f"{num_bytes:.{digits}f} {unit}"

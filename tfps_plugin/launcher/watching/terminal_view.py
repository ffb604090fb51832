"""State of a job as tables for a terminal."""

import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.console import Group
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tfps_plugin.launcher.watching import quantities
from tfps_plugin.monitoring.state.cluster_state import HEALTHY
from tfps_plugin.monitoring.state.cluster_state import LOST
from tfps_plugin.monitoring.state.cluster_state import ClusterState
from tfps_plugin.monitoring.state.cluster_state import JobState
from tfps_plugin.monitoring.state.cluster_state import TaskState

# Events that are shown, the latest ones.
_MOST_EVENTS = 6
# Tables that are shown for each parameter server.
_MOST_TABLES = 4


def new_console(**options: Any) -> Console:
    """Returns a console for `view`.

    Args:
        **options: As for `rich.console.Console`.
    """
    # Names of the program are text, whatever brackets they have.
    return Console(highlight=False, markup=False, emoji=False, **options)


def view(
    state: ClusterState, width: int, history: Sequence[float] = ()
) -> RenderableType:
    """Returns what to print.

    Args:
        state: The state.
        width: Width of the terminal, in characters.
        history: Steps per second of the past, oldest first.
    """
    parts = [
        _head(state, history),
        _table(_WORKER_COLUMNS, state.workers, width),
        _table(_PS_COLUMNS, state.parameter_servers, width),
        _hottest(state),
        _events(state),
    ]
    # An empty line between them.
    return Group(
        *(
            line
            for part in parts
            if part is not None
            for line in (part, Text(""))
        )
    )


def _head(state: ClusterState, history: Sequence[float]) -> RenderableType:
    chief = state.chief
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(
        "job",
        f"{state.program}, process {chief.process_id} on {chief.host}, up "
        f"{quantities.duration(chief.uptime_seconds)}; {state.consistency}",
    )
    grid.add_row("runs", _progress(state.job))
    speed = (
        f"{quantities.number(state.job.steps_per_second)} steps/s, "
        f"{quantities.number(state.job.examples_per_second)} examples/s"
    )
    if history:
        speed += f"  {quantities.sparkline(history)}"
    grid.add_row("speed", speed)
    if state.job.metrics:
        grid.add_row(
            "metrics",
            "  ".join(
                f"{name} {value:.4g}"
                for name, value in state.job.metrics.items()
            ),
        )
    checkpoint = state.last_checkpoint
    if checkpoint is not None:
        age = quantities.duration(state.time - checkpoint.written_at)
        grid.add_row("checkpoint", f"{checkpoint.path}, {age} ago")
    return grid


def _progress(job: JobState) -> str:
    if not job.work:
        steps = f"{job.total_steps:,} steps so far"
        return f"a custom loop, {steps}" if job.is_running else "nothing yet"
    parts = [job.work if job.is_running else f"{job.work} (ended)"]
    if job.epoch is not None:
        of = f" of {job.num_epochs}" if job.num_epochs else ""
        parts.append(f"epoch {job.epoch}{of}")
    if job.step is not None:
        of = f" of {job.steps_per_epoch:,}" if job.steps_per_epoch else ""
        parts.append(f"step {job.step:,}{of}")
    if job.running_seconds is not None:
        parts.append(quantities.duration(job.running_seconds))
    return ", ".join(parts)


# Columns: heading, text of a task, and the width of the terminal from which on
# there is room.
_Column = tuple[str, Callable[[Any], str | Text], int]

_WORKER_COLUMNS: tuple[_Column, ...] = (
    ("worker", lambda w: str(w.index), 0),
    ("health", lambda w: _health(w), 0),
    ("address", lambda w: w.address, 0),
    ("steps/s", lambda w: quantities.number(w.steps_per_second), 0),
    ("input", lambda w: quantities.share(w.input_share), 0),
    ("compute", lambda w: quantities.share(w.compute_share), 0),
    ("wait", lambda w: quantities.share(w.wait_share), 0),
    ("in flight", lambda w: str(w.closures_in_flight), 110),
    ("retries", lambda w: str(w.num_retries), 120),
    ("stale", lambda w: quantities.number(w.staleness), 110),
    ("CPU", lambda w: quantities.number(w.processors), 100),
    ("memory", lambda w: quantities.size(w.memory_bytes), 0),
    ("up", lambda w: quantities.duration(w.uptime_seconds), 120),
    ("restarts", lambda w: str(w.num_restarts), 130),
)
_PS_COLUMNS: tuple[_Column, ...] = (
    ("ps", lambda p: str(p.index), 0),
    ("health", lambda p: _health(p), 0),
    ("address", lambda p: p.address, 0),
    ("holds", lambda p: quantities.size(p.num_bytes), 0),
    ("rows", lambda p: quantities.number(p.num_rows), 100),
    ("updates/s", lambda p: quantities.number(p.updates_per_second), 100),
    ("in/s", lambda p: quantities.size(p.received_bytes_per_second), 0),
    ("out/s", lambda p: quantities.size(p.sent_bytes_per_second), 0),
    ("CPU", lambda p: quantities.number(p.processors), 110),
    ("memory", lambda p: quantities.size(p.memory_bytes), 0),
    ("limit", lambda p: quantities.size(p.memory_limit_bytes), 110),
    ("up", lambda p: quantities.duration(p.uptime_seconds), 120),
    ("restarts", lambda p: str(p.num_restarts), 130),
)


def _table(
    columns: Sequence[_Column], tasks: Sequence[TaskState], width: int
) -> Table:
    """Returns a table with the columns for which there is room."""
    shown = [each for each in columns if each[2] <= width]
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading, _, _ in shown:
        is_text = heading in ("health", "address")
        table.add_column(
            heading,
            justify="left" if is_text else "right",
            no_wrap=True,
            overflow="ellipsis",
        )
    for task in tasks:
        table.add_row(*(text(task) for _, text, _ in shown))
    return table


def _hottest(state: ClusterState) -> RenderableType | None:
    """Returns the most looked-up tables of each parameter server."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for ps in state.parameter_servers:
        names = [
            each.name
            if each.rows_per_second is None
            else f"{each.name} {quantities.number(each.rows_per_second)} rows/s"
            for each in ps.tables[:_MOST_TABLES]
        ]
        if names:
            grid.add_row(f"tables of ps {ps.index}", ", ".join(names))
    return grid if grid.row_count else None


def _events(state: ClusterState) -> RenderableType | None:
    if not state.events:
        return None
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for event in state.events[-_MOST_EVENTS:]:
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        style = {"WARNING": "yellow", "ERROR": "red"}.get(event.level, "")
        grid.add_row(at, Text(event.text, style=style))
    return grid


def _health(task: TaskState) -> Text:
    style = "green" if task.health == HEALTHY else "yellow"
    return Text(task.health, style="red" if task.health == LOST else style)

"""Explanation of a step: what it sends, where it computes and reads. Pure."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Literal

# A job whose tasks run functions.
Job = Literal["worker", "chief"]

_logger = logging.getLogger("tfps_plugin.transport")


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """Values that travel together.

    Attributes:
        source: The task that they leave; empty for the one that runs the
            function, a worker or the chief.
        destination: The task that they go to, likewise.
        wave: The number of transfers that they depend on.
        num_tensors: Number of tensors.
        num_controls: Number of operations whose end is reported.
        num_parcels: Number of messages.
        num_bytes: Bytes of the tensors whose sizes are known in advance.
        num_unsized: Number of the other tensors.
    """

    source: str
    destination: str
    wave: int
    num_tensors: int
    num_controls: int
    num_parcels: int
    num_bytes: int
    num_unsized: int


@dataclasses.dataclass(frozen=True, slots=True)
class Body:
    """A function, or the body of a loop or a branch in it.

    Attributes:
        name: Name of the function.
        num_crossings: Number of messages without fusion.
        sent: Messages with fusion, in the order of waves.
        runs_on: Job of the task that runs the function.
        operations: Number of operations on each task; the name of the task that
            runs the function is empty.
    """

    name: str
    num_crossings: int
    sent: tuple[Sent, ...]
    runs_on: Job = "worker"
    operations: tuple[tuple[str, int], ...] = ()

    @property
    def num_parcels(self) -> int:
        """Number of messages with fusion."""
        return sum(each.num_parcels for each in self.sent)

    def is_within(self, place: str) -> bool:
        """Returns whether nothing travels if it runs on another task.

        Args:
            place: The task.
        """
        return all(
            {each.source, each.destination} <= {"", place} for each in self.sent
        )


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Held:
    """A variable that a step uses, or a shard of one.

    Attributes:
        task: The task that holds it.
        name: Its name.
        num_bytes: Its size.
        disk_bytes: Number of them that are on the disk of the task only.
    """

    task: str
    name: str
    num_bytes: int
    disk_bytes: int = 0

    @property
    def memory_bytes(self) -> int:
        """The most of them that are in memory."""
        return self.num_bytes - self.disk_bytes


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The messages and the placement of a step; prints as tables.

    Attributes:
        bodies: The function, its loops and branches, if they send messages.
        held: The variables on parameter servers that the step uses.
        is_printed: Whether the user has seen the table.
    """

    bodies: tuple[Body, ...]
    held: tuple[Held, ...] = ()
    is_printed: bool = dataclasses.field(default=False, compare=False)

    def __repr__(self) -> str:
        """Returns one line; `str` returns the table."""
        values = sum(body.num_crossings for body in self.bodies)
        messages = sum(body.num_parcels for body in self.bodies)
        return (
            f"<Explanation of {len(self.bodies)} functions: {values:,} values "
            f"in {messages:,} messages>"
        )

    def _ipython_display_(self) -> None:
        """Prints the table once if it is the value of a notebook's cell."""
        if not self.is_printed:
            print(self)

    def __str__(self) -> str:
        if not self.bodies:
            return "Nothing travels between tasks."
        tables = [_table(body) for body in self.bodies]
        if self.held:
            tables.append(_placement(self.held))
        return "\n\n".join(tables)


# Number of variables that the table of placement shows, the largest first.
_MOST_HELD = 12
_HELD_COLUMNS = ("variable", "on", "bytes", "in memory")


def _placement(held: Sequence[Held]) -> str:
    """Returns a table of variables, with sums for each task."""
    by_task: dict[str, list[Held]] = {}
    for each in held:
        by_task.setdefault(_task(each.task), []).append(each)
    sums = ", ".join(
        f"{task} {_sum(mine)} ({len(mine):,})"
        for task, mine in sorted(by_task.items())
    )
    largest = sorted(held, key=lambda each: (-each.num_bytes, each.name))
    rows = [
        (each.name, _task(each.task), *_sizes([each]))
        for each in largest[:_MOST_HELD]
    ]
    if len(largest) > _MOST_HELD:
        left = largest[_MOST_HELD:]
        rows.append((f"{len(left):,} smaller ones", "", *_sizes(left)))
    columns: tuple[str, ...] = _HELD_COLUMNS
    if not any(each.disk_bytes for each in held):
        columns = columns[:-1]
    widths = [
        max(len(row[column]) for row in (columns, *rows))
        for column in range(len(columns))
    ]
    lines = [f"It uses {len(held):,} variables and shards: {sums}"]
    lines += [
        _line(row[: len(columns)], widths, left=(0, 1))
        for row in (columns, *rows)
    ]
    return "\n".join(lines)


def _sizes(held: Sequence[Held]) -> tuple[str, str]:
    """Returns the bytes of variables, and those in memory."""
    return (
        f"{sum(each.num_bytes for each in held):,}",
        f"{sum(each.memory_bytes for each in held):,}",
    )


def _sum(held: Sequence[Held]) -> str:
    """Returns text such as `4,000 bytes, of which 400 in memory`."""
    num_bytes, in_memory = _sizes(held)
    if num_bytes == in_memory:
        return f"{num_bytes} bytes"
    return f"{num_bytes} bytes, at most {in_memory} of them in memory"


_COLUMNS = ("wave", "from", "to", "values", "bytes", "messages")


def _table(body: Body) -> str:
    rows = [
        (
            str(each.wave),
            _task(each.source) or body.runs_on,
            _task(each.destination) or body.runs_on,
            f"{each.num_tensors + each.num_controls:,}",
            _bytes(each),
            f"{each.num_parcels:,}",
        )
        for each in body.sent
    ]
    rows.append(
        ("", "", "", f"{body.num_crossings:,}", "", f"{body.num_parcels:,}")
    )
    widths = [
        max(len(row[column]) for row in (_COLUMNS, *rows))
        for column in range(len(_COLUMNS))
    ]
    lines = [
        f"{body.name}: {body.num_crossings:,} values travel between tasks, "
        f"in {body.num_parcels:,} messages"
    ]
    lines += [_line(row, widths, left=(1, 2)) for row in (_COLUMNS, *rows)]
    if body.operations:
        counts = ", ".join(
            f"{_task(task) or body.runs_on} {number:,}"
            for task, number in body.operations
        )
        lines.append(f"operations: {counts}")
    return "\n".join(lines)


def _line(
    row: Sequence[str], widths: Sequence[int], left: Sequence[int]
) -> str:
    cells = [
        cell.ljust(width) if column in left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _bytes(sent: Sent) -> str:
    """Returns text such as `1,024`, or `1,024 + 3 of unknown size`."""
    if not sent.num_unsized:
        return f"{sent.num_bytes:,}"
    if sent.num_unsized == sent.num_tensors:
        return f"{sent.num_unsized:,} of unknown size"
    return f"{sent.num_bytes:,} + {sent.num_unsized:,} of unknown size"


def _task(place: str) -> str:
    """Returns `ps 1` for `/job:ps/replica:0/task:1`; empty: the own task."""
    if not place:
        return ""
    parts = dict(part.split(":", 1) for part in place.strip("/").split("/"))
    return f"{parts['job']} {parts['task']}"


def warn_of(name: str) -> None:
    """Warns of a function that stays as it was traced.

    Call it in the handler of the exception that gives the reason.

    Args:
        name: Name of the function, and of the loop or branch in it.
    """
    _logger.warning(
        "What %r sends travels value by value: it could not be put together. "
        "Results are right, and steps slower than they could be; "
        "tfps.CommunicationOptions(fusion=False) leaves the attempt out.",
        name,
        exc_info=True,
    )

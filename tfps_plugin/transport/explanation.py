"""Explanation of the messages that a step sends. Pure: no TensorFlow."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Literal

# A job whose tasks run functions.
Job = Literal["worker", "chief"]

_logger = logging.getLogger(__name__)


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
    """

    name: str
    num_crossings: int
    sent: tuple[Sent, ...]
    runs_on: Job = "worker"

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


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The messages of a step; prints as a table.

    Attributes:
        bodies: The function, its loops and branches, if they send messages.
        is_printed: Whether the user has seen the table.
    """

    bodies: tuple[Body, ...]
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
        return "\n\n".join(_table(body) for body in self.bodies)


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
    lines += [_line(row, widths) for row in (_COLUMNS, *rows)]
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if column in (1, 2) else cell.rjust(width)
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

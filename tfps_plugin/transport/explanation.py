"""What a step sends, for people. Pure: no TensorFlow."""

import dataclasses
import logging
from collections.abc import Sequence

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """What travels together.

    Attributes:
        source: The task that it leaves; empty: the worker of the step.
        destination: The task that it goes to, likewise.
        wave: How often values had to travel before it can leave.
        num_tensors: How many tensors are in it.
        num_controls: How many operations it tells of that have ended.
        num_parcels: As how many it travels.
        num_bytes: Of the tensors whose sizes are known before the step runs.
        num_unsized: How many the others are.
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
    """A function, or what it does in a loop or a branch.

    Attributes:
        name: Of the function.
        num_crossings: How much would travel one by one.
        sent: In the order of waves.
    """

    name: str
    num_crossings: int
    sent: tuple[Sent, ...]

    @property
    def num_parcels(self) -> int:
        """How much does travel."""
        return sum(each.num_parcels for each in self.sent)


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What a step sends; printed, a table.

    Attributes:
        bodies: The function and its loops and branches, those that send
            something.
        is_printed: Whether whoever asked for it has seen the table.
    """

    bodies: tuple[Body, ...]
    is_printed: bool = dataclasses.field(default=False, compare=False)

    def __repr__(self) -> str:
        """One line; `str` is the table."""
        values = sum(body.num_crossings for body in self.bodies)
        messages = sum(body.num_parcels for body in self.bodies)
        return (
            f"<Explanation of {len(self.bodies)} functions: {values:,} values "
            f"in {messages:,} messages>"
        )

    def _ipython_display_(self) -> None:
        """Shows the table once where it is the value of a notebook's cell."""
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
            _task(each.source),
            _task(each.destination),
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
    """`1,024`, or `1,024 + 3 of unknown size`."""
    if not sent.num_unsized:
        return f"{sent.num_bytes:,}"
    if sent.num_unsized == sent.num_tensors:
        return f"{sent.num_unsized:,} of unknown size"
    return f"{sent.num_bytes:,} + {sent.num_unsized:,} of unknown size"


def _task(place: str) -> str:
    """`ps 1` of `/job:ps/replica:0/task:1`."""
    if not place:
        return "worker"
    parts = dict(part.split(":", 1) for part in place.strip("/").split("/"))
    return f"{parts['job']} {parts['task']}"


def warn_of(name: str) -> None:
    """Warns of a function that stays as it was traced.

    Called where the exception is handled that says why.

    Args:
        name: Of the function, and of the loop or branch in it.
    """
    _logger.warning(
        "What %r sends travels value by value: it could not be put together. "
        "Results are right, and steps slower than they could be; "
        "tfps.CommunicationOptions(fusion=False) leaves the attempt out.",
        name,
        exc_info=True,
    )

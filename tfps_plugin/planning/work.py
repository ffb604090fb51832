"""Work that one step of one worker is, for each task. Pure."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class PsWork:
    """Work of a parameter server for one step.

    Attributes:
        bytes_in: Bytes that the worker sends to it.
        bytes_out: Bytes that it sends to the worker.
        elements: Numbers that its operations compute.
        messages: Messages between the two, in both directions.
        operations: Operations that it runs.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    elements: int = 0
    messages: int = 0
    operations: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes that travel in both directions."""
        return self.bytes_in + self.bytes_out


@dataclasses.dataclass(frozen=True, slots=True)
class StepWork:
    """Work of all tasks for one step.

    Attributes:
        ps: Work of each parameter server, by its index.
        compute_seconds: Time that a worker computes.
        compute_cpu_seconds: Processor time of that, on all of its cores.
        waves: Number of messages that follow one another, each after the
            answer to the one before.
        rows: Number of distinct rows that it looks up.
        lookups: Number of lookups, each in a shard of a table.
    """

    ps: Mapping[int, PsWork]
    compute_seconds: float
    compute_cpu_seconds: float
    waves: int
    rows: int = 0
    lookups: int = 0

    @property
    def messages(self) -> int:
        """Messages of a worker, to and from all parameter servers."""
        return sum(each.messages for each in self.ps.values())

    @property
    def bytes_in(self) -> int:
        """Bytes that a worker receives."""
        return sum(each.bytes_out for each in self.ps.values())

    @property
    def bytes_out(self) -> int:
        """Bytes that a worker sends."""
        return sum(each.bytes_in for each in self.ps.values())

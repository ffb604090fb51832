"""Report of a task about itself, as text."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class TaskReport:
    """Report of one process; None means "unknown".

    Attributes:
        host: Name of its machine.
        process_id: Its process id there.
        uptime_seconds: Time since it began.
        processors: Processors that it used lately, on average.
        busy_share: Share of the time in which it computed, from 0 to 1.
        memory_bytes: Its resident memory.
        memory_limit_bytes: Memory that it may use.
        received_bytes_per_second: Bytes that have arrived lately, in a second.
        sent_bytes_per_second: Bytes that have left.
    """

    host: str
    process_id: int
    uptime_seconds: float
    processors: float | None = None
    busy_share: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    received_bytes_per_second: float | None = None
    sent_bytes_per_second: float | None = None

    def encode(self) -> str:
        """Returns the report as text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def decode(cls, text: str) -> "TaskReport":
        """Returns the report that `encode` has turned into a text.

        Raises:
            ValueError: If the text is not a report. Fields that this release
                does not know are left out.
        """
        fields = json.loads(text)
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**{n: v for n, v in fields.items() if n in known})
        except (TypeError, AttributeError) as error:
            raise ValueError(f"not a report: {text!r}") from error

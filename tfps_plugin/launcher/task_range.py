"""Number of workers of a job, and the numbers that it may become. Pure."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class WorkerRange:
    """The numbers of workers that a job may have.

    Attributes:
        first: The number to start with.
        most: The largest number; the least is one.
    """

    first: int
    most: int

    @classmethod
    def parse(cls, text: str) -> "WorkerRange":
        """Reads `"2"`, which never changes, or `"2:8"`.

        Args:
            text: The number to start with, and the largest number.

        Returns:
            The range.

        Raises:
            ValueError: If it is neither.
        """
        first, colon, most = text.partition(":")
        parts = [first, most] if colon else [first, first]
        if not all(part.isdecimal() and int(part) > 0 for part in parts) or (
            int(parts[0]) > int(parts[1])
        ):
            raise ValueError(
                "expected a number of workers, such as 2, or the number to "
                "start with and the largest number, such as 2:8; received "
                f"{text!r}"
            )
        return cls(int(parts[0]), int(parts[1]))

    @property
    def may_change(self) -> bool:
        """True if there may be more workers than at the start."""
        return self.most > self.first


class WantedWorkers:
    """The workers that are to run, and those that wait for their turn.

    A worker that was told to end, and is wanted again, is started when it has
    ended: it serves at the same address.

    Threading: for use by one thread.
    """

    def __init__(self, numbers: WorkerRange) -> None:
        """Begins with the first number, all of them started."""
        self._numbers = numbers
        self._number = numbers.first
        self._waiting: set[int] = set()

    @property
    def number(self) -> int:
        """Number of workers that are wanted."""
        return self._number

    def refusal(self, number: int) -> str | None:
        """Returns why there cannot be that many workers; None: there can.

        Args:
            number: Number of workers.
        """
        if 1 <= number <= self._numbers.most:
            return None
        return (
            f"Expected 1 to {self._numbers.most} workers, as the job was "
            f"started with --workers {self._numbers.first}:"
            f"{self._numbers.most}. Received: --workers {number}."
        )

    def change_to(self, number: int) -> None:
        """Sets the number of workers.

        Args:
            number: A number that is not refused.
        """
        self._waiting |= set(range(self._number, number))
        self._waiting -= set(range(number, self._numbers.most))
        self._number = number

    def take_due(self, running: set[int]) -> list[int]:
        """Returns the indices of workers to start now, ascending.

        Args:
            running: Indices of the workers whose processes run.
        """
        due = sorted(self._waiting - running)
        self._waiting -= set(due)
        return due

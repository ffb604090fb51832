"""Numbers of tasks of a job: those it may have, and those wanted. Pure."""

import dataclasses

from tfps_plugin.cluster.serving.chief_watch import EXIT_NO_CHIEF
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER

# The options of `tfps run` and `tfps scale`, by the job of the tasks.
OPTIONS = {WORKER: "--workers", PARAMETER_SERVER: "--ps"}
_NAMES = {WORKER: "worker", PARAMETER_SERVER: "parameter server"}


@dataclasses.dataclass(frozen=True)
class TaskRange:
    """The numbers of workers, or of parameter servers, that there may be.

    Attributes:
        job: Their job, `"worker"` or `"ps"`.
        first: The number to start with.
        most: The largest number; the least is one.
    """

    job: str
    first: int
    most: int

    @classmethod
    def parse(cls, job: str, text: str) -> "TaskRange":
        """Reads `"2"`, which never changes, or `"2:8"`.

        Args:
            job: The job of the tasks.
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
                f"There is no such number of {_NAMES[job]}s. Expected a number "
                "from 1, such as 2, or the number to start with and the "
                f"largest number, such as 2:8. Received: {OPTIONS[job]} "
                f"{text!r}. Give a single number if it is not to change."
            )
        return cls(job, int(parts[0]), int(parts[1]))

    def __str__(self) -> str:
        option = f"{OPTIONS[self.job]} {self.first}"
        return f"{option}:{self.most}" if self.may_change else option

    @property
    def may_change(self) -> bool:
        """True if there may be more tasks than at the start."""
        return self.most > self.first

    def counted(self, number: int) -> str:
        """Returns "1 worker", "2 parameter servers"."""
        return f"{number} {_NAMES[self.job]}{'' if number == 1 else 's'}"

    def refusal(self, number: int) -> str | None:
        """Returns why there cannot be that many tasks; None: there can.

        Args:
            number: Number of tasks.
        """
        option, name = OPTIONS[self.job], _NAMES[self.job]
        if not self.may_change:
            if number == self.first:
                return None
            return (
                f"The number of {name}s of this job does not change. Expected "
                "a job that was started with a largest number, such as tfps "
                f"run {option} {self.first}:{max(number, self.first + 1)}. "
                f"Received: {option} {number}, for a job that was started "
                f"with {self}."
            )
        if 1 <= number <= self.most:
            return None
        return (
            f"This job cannot have {self.counted(number)}. Expected 1 to "
            f"{self.counted(self.most)}, as it was started with {self}. "
            f"Received: {option} {number}."
        )


class WantedTasks:
    """The tasks of one job that are to run, and those to start.

    The chief tells tasks to end that it has removed from the cluster. It does
    so in its own time: a task may be wanted again before. It is then started
    when it has ended, because it serves at the same address.

    Threading: for use by one thread.
    """

    def __init__(self, numbers: TaskRange) -> None:
        """Begins with the first number, all of them started."""
        self._numbers = numbers
        self._number = numbers.first
        # To be started as soon as they do not run.
        self._waiting: set[int] = set()
        # Those that were started since the beginning.
        self._late: set[int] = set()

    @property
    def number(self) -> int:
        """Number of tasks that are wanted."""
        return self._number

    def change_to(self, number: int) -> None:
        """Sets the number of tasks.

        Args:
            number: A number that the range does not refuse.
        """
        self._waiting |= set(range(self._number, number))
        self._waiting -= set(range(number, self._numbers.most))
        self._number = number

    def take_due(self, running: set[int]) -> list[int]:
        """Returns the indices of tasks to start now, ascending.

        Args:
            running: Indices of the tasks whose processes run.
        """
        due = sorted(self._waiting - running)
        self._waiting -= set(due)
        self._late |= set(due)
        return due

    def ended(self, index: int, returncode: int) -> str | None:
        """Records that the process of a task has ended.

        Args:
            index: Its index.
            returncode: Its exit code, as in `subprocess`.

        Returns:
            A sentence that says what follows; None if this does not decide it,
            as for a task that fails.
        """
        is_wanted = index < self._number
        # No chief has asked for it in time. One that moves variables adds a
        # task late, and one that was removed meanwhile never.
        is_unclaimed = returncode == EXIT_NO_CHIEF and (
            index in self._late or not is_wanted
        )
        if is_wanted and is_unclaimed:
            self._waiting.add(index)
        if index in self._waiting:
            return "It is wanted, and started again."
        if is_unclaimed:
            return "It is not started again, as it is not wanted any more."
        return None

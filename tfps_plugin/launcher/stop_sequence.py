"""The steps that end a job: signals to tasks, and the waits between them.

Programs (the chief and the evaluator) run the user's code. They are asked to
end first, so that they can save their work while the cluster is still there.
Then all tasks are asked, and at last all are killed.

When the chief has ended by itself, the evaluator may still evaluate the last
checkpoint. It needs no cluster for that.
"""

import dataclasses
import enum
import signal
from collections.abc import Callable
from collections.abc import Collection


class Reason(enum.Enum):
    """The reason for which a job ends."""

    CHIEF_ENDED = "the chief ended"
    INTERRUPTED = "interrupted"
    TERMINATED = "asked to end"


class Audience(enum.Enum):
    """The tasks that a step is for."""

    PROGRAMS = "programs"
    SERVERS = "servers"
    EVERYONE = "everyone"


@dataclasses.dataclass(frozen=True)
class Step:
    """One step toward the end of a job.

    Attributes:
        signal: The signal to send; None only waits.
        audience: The tasks that get it.
        patience_seconds: The time that they have to end.
    """

    signal: signal.Signals | None
    audience: Audience
    patience_seconds: float


def plan_steps(
    reason: Reason,
    *,
    grace_seconds: float,
    evaluator_seconds: float,
    task_seconds: float = 5.0,
) -> tuple[Step, ...]:
    """Returns the steps to take.

    Args:
        reason: The reason for which the job ends.
        grace_seconds: The time in which the user's programs may end themselves.
        evaluator_seconds: The time for which the evaluator may go on after the
            chief has ended by itself; 0 ends it at once.
        task_seconds: The time that each later step may take.
    """

    def stop(audience: Audience) -> tuple[Step, ...]:
        return (
            Step(signal.SIGTERM, audience, task_seconds),
            Step(signal.SIGKILL, audience, task_seconds),
        )

    if reason is Reason.CHIEF_ENDED:
        if not evaluator_seconds:
            return stop(Audience.EVERYONE)
        return (
            *stop(Audience.SERVERS),
            Step(None, Audience.PROGRAMS, evaluator_seconds),
            *stop(Audience.EVERYONE),
        )
    first = {
        Reason.INTERRUPTED: signal.SIGINT,
        Reason.TERMINATED: signal.SIGTERM,
    }[reason]
    return (
        Step(first, Audience.PROGRAMS, grace_seconds),
        *stop(Audience.EVERYONE),
    )


class StopSequence:
    """The progress of a job toward its end.

    A step is over when all its tasks have ended, when its time is up, or when
    the user hurries.

    Args:
        steps: The steps, from `plan_steps`.
        is_program: Returns whether a task, by its name, is a program.

    Threading: for use by one thread.
    """

    def __init__(
        self, steps: Collection[Step], is_program: Callable[[str], bool]
    ) -> None:
        self._coming = list(steps)
        self._is_program = is_program
        self._current: Step | None = None
        self._deadline = float("-inf")  # Nothing to wait for yet.

    @property
    def deadline(self) -> float:
        """The time at which `advance` decides next, if no task ends before."""
        return self._deadline

    def has_failed(self, now: float) -> bool:
        """Returns whether tasks are left after the time of the last step."""
        return not self._coming and now >= self._deadline

    def hurry(self) -> None:
        """Ends the wait of the current step, unless it is the last one."""
        if self._coming:
            self._deadline = float("-inf")

    def advance(
        self, now: float, running: Collection[str]
    ) -> tuple[Step, tuple[str, ...]] | None:
        """Begins the next step if the current one is over.

        Args:
            now: The time, in seconds of a monotonic clock.
            running: The names of the tasks that still run.

        Returns:
            The next step and the names of its tasks, or None to go on waiting.
        """
        if now < self._deadline and self._concerned(self._current, running):
            return None
        while self._coming:
            self._current = self._coming.pop(0)
            concerned = self._concerned(self._current, running)
            if concerned:
                self._deadline = now + self._current.patience_seconds
                return self._current, concerned
        return None

    def _concerned(
        self, step: Step | None, running: Collection[str]
    ) -> tuple[str, ...]:
        if step is None:
            return ()
        if step.audience is Audience.EVERYONE:
            return tuple(running)
        wants_programs = step.audience is Audience.PROGRAMS
        return tuple(
            name for name in running if self._is_program(name) == wants_programs
        )

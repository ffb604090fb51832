"""How a job is brought to its end: who is told what, and how long we wait.

Programs (the chief, the evaluator) run the user's code: they are asked first,
so that they can save what they have while the cluster is still there. Then
everybody is asked, then nobody is.

When the chief has ended by itself, the evaluator may still have its last
checkpoint to evaluate. It needs no cluster for that.
"""

import dataclasses
import enum
import signal
from collections.abc import Callable
from collections.abc import Collection


class Reason(enum.Enum):
    """Why a job ends."""

    CHIEF_ENDED = "the chief ended"
    INTERRUPTED = "interrupted"
    TERMINATED = "asked to end"


class Audience(enum.Enum):
    """Whom a step is for."""

    PROGRAMS = "programs"
    SERVERS = "servers"
    EVERYONE = "everyone"


@dataclasses.dataclass(frozen=True)
class Step:
    """One step towards the end.

    Attributes:
        signal: What is sent; None only waits.
        audience: Who gets it.
        patience_seconds: How long they have.
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
    """The steps to take.

    Args:
        reason: Why the job ends.
        grace_seconds: How long the user's programs have for their own end.
        evaluator_seconds: How long the evaluator may go on once the chief
            has ended by itself; 0 for not at all.
        task_seconds: How long each later step may take.
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
    """Where a job is on its way to the end.

    A step is over when everybody it was sent to has ended, when its time is
    up, or when the user is in a hurry.

    Args:
        steps: From `plan_steps`.
        is_program: Tells programs from the other tasks, by name.

    Threading: of one thread.
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
        """When `advance` has something to decide, if nobody ends before."""
        return self._deadline

    def has_failed(self, now: float) -> bool:
        """Whether even the last step did not help in time."""
        return not self._coming and now >= self._deadline

    def hurry(self) -> None:
        """Gives up waiting for the current step, unless it is the last."""
        if self._coming:
            self._deadline = float("-inf")

    def advance(
        self, now: float, running: Collection[str]
    ) -> tuple[Step, tuple[str, ...]] | None:
        """Decides what to do now.

        Args:
            now: The time, in seconds of any clock that only goes forward.
            running: The names of the tasks that still run.

        Returns:
            The next step and whom it is for, or None to go on waiting.
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

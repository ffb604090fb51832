"""Decides when a worker or ps ends itself."""

import dataclasses
import os
import signal

from tfps_plugin.cluster import spec
from tfps_plugin.cluster.serving import messages

EXIT_JOB_OVER = 0
# "Service unavailable": the chief that this process depends on is gone. Below
# 128, so that a job controller treats it as final and does not restart it.
EXIT_NO_CHIEF = os.EX_UNAVAILABLE

# Job controllers understand this as "was preempted, start it again".
EXIT_TERMINATED = 128 + signal.SIGTERM

# Time after which a task first reports that it has no chief; the interval then
# doubles, up to the longest one.
_FIRST_REMINDER_SECONDS = 30.0
_LONGEST_REMINDER_SECONDS = 960.0


@dataclasses.dataclass(frozen=True)
class Ending:
    """A task's decision to end.

    Attributes:
        exit_code: Exit code of its process.
        reason: The reason, for its log.
    """

    exit_code: int
    reason: str


class ChiefWatch:
    """Decides whether there is still a chief to serve.

    Times are seconds of a monotonic clock.

    Args:
        now: The time at which the task began to serve.
        chief_start_timeout_seconds: Time to wait for the first chief.
        chief_grace_seconds: Time to wait for a chief that no longer answers,
            or for another in its place.
    """

    def __init__(
        self,
        now: float,
        *,
        chief_start_timeout_seconds: float,
        chief_grace_seconds: float,
    ) -> None:
        self._chief_start_timeout_seconds = chief_start_timeout_seconds
        self._chief_grace_seconds = chief_grace_seconds
        self._begin = self._last_sign = now
        self._next_reminder = now + _FIRST_REMINDER_SECONDS
        self._chief: messages.ChiefHere | None = None
        self._answers = True
        # The time until which the task may still be let go, and the exit code
        # if it is; None: it was not told to end.
        self._leaves_until: float | None = None
        self._exit_code = EXIT_JOB_OVER

    @property
    def chief(self) -> messages.ChiefHere | None:
        """The chief to watch; None if none has connected yet."""
        return self._chief

    def heard(self, message: messages.Message, now: float) -> Ending | None:
        """Takes a message; returns the decision that follows, if any."""
        if isinstance(message, messages.ChiefHere):
            self._chief = message
            self._last_sign = now
            self._answers = True
            return None
        if isinstance(message, messages.Leaving):
            return None  # no message for a task
        if self._chief is None or self._chief.chief_id == message.chief_id:
            if self._leaves_until is not None:
                return Ending(
                    self._exit_code,
                    "it was told to end (SIGTERM), and the chief has let it go",
                )
            return Ending(EXIT_JOB_OVER, "the job is over")
        # An earlier chief has ended, which another one has replaced.
        return None

    def told_to_end(
        self, now: float, drain_seconds: float, exit_code: int
    ) -> None:
        """Records that the task was told to end, and has asked its chief.

        Args:
            now: The time.
            drain_seconds: Time for which it waits until the chief lets it go.
            exit_code: Exit code if the chief does.
        """
        self._leaves_until = now + drain_seconds
        self._exit_code = exit_code

    @property
    def was_told_to_end(self) -> bool:
        """True after `told_to_end`."""
        return self._leaves_until is not None

    def probed(self, answers: bool, now: float) -> str | None:
        """Records whether the chief has answered; returns news for the log."""
        if answers:
            self._last_sign = now
        if answers == self._answers:
            return None
        self._answers = answers
        if answers:
            return "the chief answers again"
        return (
            "the chief does not answer; waiting up to "
            f"{self._chief_grace_seconds:g} s for it, or for another one"
        )

    def reminder(self, now: float) -> float | None:
        """Decides, at growing intervals, to report that there is no chief yet.

        Returns:
            The seconds without a chief, if it is time to report them.
        """
        if self._chief is not None or now < self._next_reminder:
            return None
        waited_seconds = now - self._begin
        self._next_reminder = now + min(
            waited_seconds, _LONGEST_REMINDER_SECONDS
        )
        return waited_seconds

    def seconds_left(self, now: float) -> float:
        """Returns the seconds that the task will still wait without news."""
        if self._leaves_until is not None:
            return max(0.0, self._leaves_until - now)
        patience_seconds = (
            self._chief_start_timeout_seconds
            if self._chief is None
            else self._chief_grace_seconds
        )
        return max(0.0, patience_seconds - (now - self._last_sign))

    def check(self, now: float) -> Ending | None:
        """Returns the decision to end, by a deadline."""
        if self._leaves_until is not None:
            if not self._answers:
                return Ending(
                    EXIT_TERMINATED,
                    "it was told to end (SIGTERM), and the chief does not "
                    "answer",
                )
            if now >= self._leaves_until:
                return Ending(
                    EXIT_TERMINATED,
                    "it was told to end (SIGTERM), and what it runs takes "
                    "longer than drain_seconds",
                )
            return None
        if self.seconds_left(now) > 0:
            return None
        silent_seconds = now - self._last_sign
        if self._chief is None:
            return Ending(
                EXIT_NO_CHIEF,
                f"no chief has connected within {silent_seconds:.0f} s. Start "
                "the program of the chief sooner, or set "
                "chief_start_timeout_seconds",
            )
        return Ending(
            EXIT_NO_CHIEF,
            f"the chief at {self._chief.address} has not answered for "
            f"{silent_seconds:.0f} s, and no other has taken its place. To "
            "wait longer for it, set chief_grace_seconds",
        )


def no_chief_text(
    config: spec.TaskConfig, waited_seconds: float, left_seconds: float
) -> str:
    """Returns advice for a task that waits for a chief in vain.

    Args:
        config: The task and its cluster.
        waited_seconds: Time that it has waited.
        left_seconds: Time that it will still wait.
    """
    task = config.task
    if config.cluster.chief_address is None:
        who = (
            "one more process runs your program as the chief, with the same "
            'cluster and "task": {"type": "chief", "index": 0} in its '
            "TF_CONFIG: this cluster names no chief, and a worker is none"
        )
    else:
        who = (
            "your program runs as the chief of this cluster, "
            f"cluster.chief[0]={config.cluster.chief_address!r}"
        )
    return (
        f"no chief has connected yet, after {waited_seconds:.0f} s. {task} "
        f"listens at {task.address} and waits for another "
        f"{left_seconds:.0f} s. Check that (1) {who}; (2) the chief's cluster "
        f"has {task.address!r} as {task.job}[{task.index}]; (3) the chief's "
        "machine may connect to this address; (4) the chief is not waiting "
        "for another task, which its log would name"
    )

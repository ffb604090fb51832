"""Decisions on when the evaluator ends. Pure.

Times are seconds of one monotonic clock.
"""

import dataclasses

from tfps_plugin import errors


@dataclasses.dataclass(frozen=True)
class Endings:
    """Limits after which the evaluator ends; None is no limit.

    Attributes:
        max_evaluations: Largest number of evaluations. A checkpoint whose
            name has this number or a larger one is the last, too.
        stop_after_step: Optimizer step after whose evaluation it ends.
        no_checkpoint_timeout_seconds: Longest time without a new checkpoint.

    Raises:
        InputError: If a limit is not positive.
    """

    max_evaluations: int | None = None
    stop_after_step: int | None = None
    no_checkpoint_timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise errors.InputError(
                    f"{field.name} must be positive, or None for no limit. "
                    f"Received: {field.name}={value!r}"
                )

    def after_evaluation(
        self, *, num_evaluations: int, number: int | None, step: int
    ) -> str | None:
        """Returns the reason to end after an evaluation; None to continue.

        Args:
            num_evaluations: Number of evaluations so far.
            number: Number in the name of the last checkpoint, if any.
            step: Optimizer step of the last checkpoint.
        """
        limit = self.max_evaluations
        if limit is not None and num_evaluations >= limit:
            return f"max_evaluations={limit} is reached"
        if limit is not None and number is not None and number >= limit:
            return f"the checkpoint numbered {number} is evaluated"
        if self.stop_after_step is not None and step >= self.stop_after_step:
            return f"the checkpoint of step {step} is evaluated"
        return None

    def while_waiting(
        self, *, waited_seconds: float, num_pending: int, is_job_over: bool
    ) -> str | None:
        """Returns the reason to end while waiting; None to continue.

        Args:
            waited_seconds: Time since the start or the last evaluation.
            num_pending: Number of checkpoints that cannot be evaluated yet.
            is_job_over: Whether the job that writes checkpoints is over. It
                must be read before the folder is listed.
        """
        if is_job_over and not num_pending:
            return "the job is over"
        timeout_seconds = self.no_checkpoint_timeout_seconds
        if timeout_seconds is not None and waited_seconds >= timeout_seconds:
            return f"no new checkpoint for {waited_seconds:.3g} s"
        return None


class Silence:
    """Time since a task of the followed job has last answered.

    A chief that dies may be started again, and its workers and ps wait for
    it. They end with the job, so the job is over when neither the chief nor
    any ps has answered for a while.

    Args:
        now: Time at which the evaluator began to follow the job.
        start_timeout_seconds: Longest time until the first answer.
        silence_seconds: Longest time without an answer after that.
    """

    def __init__(
        self,
        now: float,
        *,
        start_timeout_seconds: float,
        silence_seconds: float,
    ) -> None:
        self._start_timeout_seconds = start_timeout_seconds
        self._silence_seconds = silence_seconds
        self._last_sign = now
        self._has_begun = False

    def probed(self, answered: bool, now: float) -> None:
        """Records whether any task answered a probe at time `now`."""
        if answered:
            self._has_begun = True
            self._last_sign = now

    def is_over(self, now: float) -> bool:
        """Returns whether the job has been silent for too long."""
        patience_seconds = (
            self._silence_seconds
            if self._has_begun
            else self._start_timeout_seconds
        )
        return now - self._last_sign >= patience_seconds

"""Decides when the evaluator ends."""

import dataclasses

from tfps_plugin import errors


@dataclasses.dataclass(frozen=True)
class Endings:
    """When there is nothing left to do.

    Attributes:
        max_evaluations: Ends after so many evaluations, and after that of a
            checkpoint whose name has this number or a larger one.
        stop_after_step: Ends after a checkpoint of this step or a later one.
        no_checkpoint_timeout_seconds: Ends if no new checkpoint appears for
            so long.

    Raises:
        InputError: If one of them is not positive.
    """

    max_evaluations: int | None = None
    stop_after_step: int | None = None
    no_checkpoint_timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise errors.InputError(
                    f"{field.name} must be positive, or None for no such "
                    f"limit. Received: {field.name}={value!r}"
                )

    def after_evaluation(
        self, *, num_evaluations: int, number: int | None, step: int
    ) -> str | None:
        """Why to end now, None to go on.

        Args:
            num_evaluations: How many there have been.
            number: The number in the name of the last checkpoint.
            step: The step of the last checkpoint.
        """
        limit = self.max_evaluations
        if limit is not None and num_evaluations >= limit:
            return f"max_evaluations={limit} are done"
        if limit is not None and number is not None and number >= limit:
            return f"the checkpoint numbered {number} is evaluated"
        if self.stop_after_step is not None and step >= self.stop_after_step:
            return f"the checkpoint of step {step} is evaluated"
        return None

    def while_waiting(
        self, *, waited_seconds: float, num_pending: int, is_job_over: bool
    ) -> str | None:
        """Why to end now, where there is no checkpoint to evaluate.

        Args:
            waited_seconds: Since the start or the last evaluation.
            num_pending: How many checkpoints cannot be evaluated yet.
            is_job_over: Whether nobody writes checkpoints any more. It has to
                be asked before the folder is looked at.
        """
        if is_job_over and not num_pending:
            return "the job is over"
        timeout_seconds = self.no_checkpoint_timeout_seconds
        if timeout_seconds is not None and waited_seconds >= timeout_seconds:
            return f"no new checkpoint for {waited_seconds:.3g} s"
        return None

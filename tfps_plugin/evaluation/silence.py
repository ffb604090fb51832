"""Decides that a job is over because nobody of it answers any more."""


class Silence:
    """Whether the job that is followed is over.

    The chief may die and be started again: workers and ps wait for it. They
    end with the job. So a job is over when neither the chief nor any ps has
    answered for a while.

    Times are seconds of one clock that only goes forward.

    Args:
        now: The time at which the evaluator began to follow.
        start_timeout_seconds: How long to wait for the first answer.
        silence_seconds: How long nobody may answer.
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
        """Takes whether anybody has answered."""
        if answered:
            self._has_begun = True
            self._last_sign = now

    def is_over(self, now: float) -> bool:
        """Whether it has been silent for too long."""
        patience_seconds = (
            self._silence_seconds
            if self._has_begun
            else self._start_timeout_seconds
        )
        return now - self._last_sign >= patience_seconds

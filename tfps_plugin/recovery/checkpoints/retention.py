"""Selection of the checkpoints that a folder keeps. Pure."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Retention:
    """Keeps the newest and the best checkpoints.

    Attributes:
        max_to_keep: Number of the newest to keep; None keeps all.
        keep_best: Number of the best to keep beside them.
        larger_is_better: Whether a larger score is better.
    """

    max_to_keep: int | None = 5
    keep_best: int = 0
    larger_is_better: bool = False

    def best(
        self, numbers: Sequence[int], scores: Mapping[int, float]
    ) -> list[int]:
        """Returns the best checkpoints, best first.

        Args:
            numbers: Numbers of all checkpoints.
            scores: Scores by number; NaN counts as no score.

        Returns:
            At most `keep_best` numbers; of equal scores the newer is better.
        """
        scored = [n for n in numbers if n in scores and scores[n] == scores[n]]
        sign = -1.0 if self.larger_is_better else 1.0
        scored.sort(key=lambda n: (sign * scores[n], -n))
        return scored[: self.keep_best]

    def to_delete(
        self, numbers: Sequence[int], scores: Mapping[int, float]
    ) -> list[int]:
        """Returns the checkpoints that are not kept, oldest first.

        Args:
            numbers: Numbers of all checkpoints.
            scores: Scores by number, of those that have one.
        """
        if self.max_to_keep is None:
            return []
        newest = sorted(numbers)[-self.max_to_keep :]
        kept = {*newest, *self.best(numbers, scores)}
        return [n for n in sorted(numbers) if n not in kept]

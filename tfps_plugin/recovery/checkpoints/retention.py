"""Which checkpoints of a folder are kept. Pure."""

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Retention:
    """Keeps the newest checkpoints, and the best.

    Attributes:
        max_to_keep: How many of the newest; None: all.
        keep_best: How many of the best beside them.
        larger_is_better: What the best are.
    """

    max_to_keep: int | None = 5
    keep_best: int = 0
    larger_is_better: bool = False

    def best(
        self, numbers: Sequence[int], scores: Mapping[int, float]
    ) -> list[int]:
        """The best checkpoints, best first; of two alike the newer."""
        scored = [n for n in numbers if n in scores and scores[n] == scores[n]]
        sign = -1.0 if self.larger_is_better else 1.0
        scored.sort(key=lambda n: (sign * scores[n], -n))
        return scored[: self.keep_best]

    def to_delete(
        self, numbers: Sequence[int], scores: Mapping[int, float]
    ) -> list[int]:
        """The checkpoints that are not kept, oldest first.

        Args:
            numbers: All checkpoints that are there.
            scores: What those that were judged came to.
        """
        if self.max_to_keep is None:
            return []
        newest = sorted(numbers)[-self.max_to_keep :]
        kept = {*newest, *self.best(numbers, scores)}
        return [n for n in sorted(numbers) if n not in kept]

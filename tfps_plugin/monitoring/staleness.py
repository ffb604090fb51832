"""Staleness of asynchronous updates. Pure: no TensorFlow.

The staleness of an update is the number of updates by other steps that were
applied after the step had read its weights, and before its own update.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Iterable
from collections.abc import Sequence

# The smallest staleness of every bin but the first, which is for zero: 1, 2,
# 3 to 4, 5 to 8, ...
LOWER_BOUNDS = (1, 2, *(2**power + 1 for power in range(1, 11)))
NUM_BINS = len(LOWER_BOUNDS) + 1
# A vector of counts has the bins first, then the sum and the largest.
SUM = NUM_BINS
LARGEST = NUM_BINS + 1
LENGTH = NUM_BINS + 2


@dataclasses.dataclass(frozen=True)
class Staleness:
    """Staleness of some updates, as a histogram.

    Attributes:
        bins: Number of updates in each bin, see `LOWER_BOUNDS`.
        total: Sum over all updates.
        largest: The largest of any update.
    """

    bins: tuple[int, ...] = (0,) * NUM_BINS
    total: int = 0
    largest: int = 0

    @classmethod
    def of(cls, values: Sequence[int]) -> "Staleness":
        """Counts the staleness of single updates.

        Args:
            values: The staleness of each update.
        """
        bins = [0] * NUM_BINS
        for value in values:
            bins[bisect.bisect_right(LOWER_BOUNDS, value)] += 1
        return cls(tuple(bins), sum(values), max(values, default=0))

    @classmethod
    def of_vector(cls, vector: Iterable[int]) -> "Staleness":
        """Returns what a vector of `LENGTH` numbers holds."""
        numbers = [int(number) for number in vector]
        return cls(tuple(numbers[:NUM_BINS]), numbers[SUM], numbers[LARGEST])

    @property
    def num_updates(self) -> int:
        """Number of updates."""
        return sum(self.bins)

    @property
    def mean(self) -> float:
        """Mean over all updates; 0 if there are none."""
        return self.total / max(1, self.num_updates)

    def __add__(self, other: "Staleness") -> "Staleness":
        return Staleness(
            tuple(map(sum, zip(self.bins, other.bins, strict=True))),
            self.total + other.total,
            max(self.largest, other.largest),
        )

    def __str__(self) -> str:
        """Returns one line, with the share of each bin that is not empty."""
        shares = ", ".join(
            f"{name}: {100 * number / self.num_updates:.3g}%"
            for name, number in zip(_names(" to "), self.bins, strict=True)
            if number
        )
        return f"mean {self.mean:.2f}, largest {self.largest} ({shares})"

    def counts(self) -> dict[str, int]:
        """Returns the names of counters, and what to add to each.

        The bins are `staleness_0`, `staleness_1`, `staleness_2`,
        `staleness_3_to_4` and so on; the largest is not among them.
        """
        bins = dict(zip(_names("_to_"), self.bins, strict=True))
        return {
            "staleness_updates": self.num_updates,
            "staleness_sum": self.total,
            **{f"staleness_{name}": number for name, number in bins.items()},
        }


def _names(to: str) -> list[str]:
    """Returns the names of the bins, with `to` between their bounds."""
    lowest = (0, *LOWER_BOUNDS)
    names = []
    for first, following in itertools.pairwise(lowest):
        last = following - 1
        names.append(str(first) if first == last else f"{first}{to}{last}")
    more = " or more" if to == " to " else "_or_more"
    return [*names, f"{lowest[-1]}{more}"]

"""Limits on the number of functions that a worker runs at a time. Pure."""

from typing import NamedTuple

# For functions of which we do not know whether they train. `fit` begins with
# one while it trains.
_AT_FIRST = 2
_MOST = 4


class InFlightLimits(NamedTuple):
    """Numbers of functions that each worker runs at a time.

    `fit` tunes the number between `least` and `most` while it trains.

    Attributes:
        at_first: The number while nothing tunes it.
        most: The largest number; each worker has so many lanes.
        least: The smallest number that `fit` may choose.
    """

    at_first: int
    most: int
    least: int

    @classmethod
    def choose(
        cls, per_worker: int | None, prefetch_embeddings: bool | None
    ) -> "InFlightLimits":
        """Chooses the limits from the options of a strategy.

        Args:
            per_worker: The number that the user chose; None: none.
            prefetch_embeddings: Whether steps fetch rows for the next step.
        """
        if per_worker:
            return cls(per_worker, per_worker, per_worker)
        # A single function at a time has no other one to fetch rows for it.
        return cls(_AT_FIRST, _MOST, 2 if prefetch_embeddings else 1)

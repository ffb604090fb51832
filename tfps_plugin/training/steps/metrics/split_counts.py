"""What was counted of which split, and what of that still holds. Pure."""

from collections.abc import Hashable

from tfps_plugin.training.steps.metrics import counted_sums
from tfps_plugin.training.steps.metrics.counted_sums import Counted


class SplitCounts:
    """Adds up what calls have counted, while the splits they read may be lost.

    What is read again from its start is counted again; so what calls have
    counted of a split holds once the split was read to its end, and is dropped
    if its reader was lost before. Calls that were under way then may still
    come to their end, and are dropped too.

    Not thread-safe: whoever shares it puts a lock around it.
    """

    def __init__(self, *, rereads: bool) -> None:
        """Begins with nothing counted.

        Args:
            rereads: Whether a split whose reader was lost is read again from
                its start. If not, whatever was counted holds.
        """
        self._rereads = rereads
        self._held: Counted = {}
        self._by_split: dict[Hashable, Counted] = {}
        self._lost: set[Hashable] = set()

    def add(self, split: Hashable, counted: Counted) -> None:
        """Adds what a call has counted.

        Args:
            split: The reading of a split that it took part in; a split that
                is read again is another one.
            counted: Fetched results of `CountedSums.pack`.
        """
        if not self._rereads:
            self._held = counted_sums.add(self._held, counted)
        elif split not in self._lost:
            self._by_split[split] = counted_sums.add(
                self._by_split.get(split, {}), counted
            )

    def finish(self, split: Hashable) -> None:
        """Notes that a split was read to its end."""
        self._held = counted_sums.add(self._held, self._by_split.pop(split, {}))

    def lose(self, split: Hashable) -> None:
        """Notes that the reader of a split was lost before its end."""
        self._by_split.pop(split, None)
        self._lost.add(split)

    def take(self, *, unfinished: bool = False) -> Counted:
        """Hands out what holds and was not handed out before.

        Args:
            unfinished: Whether also what was counted of splits that nobody
                will read to their end any more.

        Returns:
            The sums; empty: nothing was counted.
        """
        if unfinished:
            for split in list(self._by_split):
                self.finish(split)
        held, self._held = self._held, {}
        return held

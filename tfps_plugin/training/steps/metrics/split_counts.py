"""Counts by split, some of which may become invalid. Pure."""

from collections.abc import Hashable

from tfps_plugin.training.steps.metrics import counted_sums
from tfps_plugin.training.steps.metrics.counted_sums import Counted


class SplitCounts:
    """Sums the counts of calls while the splits that they read may be lost.

    A split that is read again from its start is counted again. So the counts of
    a split become valid when it is read to its end, and are dropped if its
    reader is lost before. Calls that were running at that time may still end,
    and are dropped, too.

    Not thread-safe: callers that share it need a lock.
    """

    def __init__(self, *, rereads: bool) -> None:
        """Starts without counts.

        Args:
            rereads: Whether a split whose reader was lost is read again from
                its start. If not, all counts are valid.
        """
        self._rereads = rereads
        self._held: Counted = {}
        self._by_split: dict[Hashable, Counted] = {}
        self._lost: set[Hashable] = set()

    def add(self, split: Hashable, counted: Counted) -> None:
        """Adds the counts of a call.

        Args:
            split: A key of the pass over the split; a split that is read again
                has another key.
            counted: Fetched results of `CountedSums.pack`.
        """
        if not self._rereads:
            self._held = counted_sums.add(self._held, counted)
        elif split not in self._lost:
            self._by_split[split] = counted_sums.add(
                self._by_split.get(split, {}), counted
            )

    def finish(self, split: Hashable) -> None:
        """Records that a split was read to its end."""
        self._held = counted_sums.add(self._held, self._by_split.pop(split, {}))

    def lose(self, split: Hashable) -> None:
        """Records that the reader of a split was lost before its end."""
        self._by_split.pop(split, None)
        self._lost.add(split)

    def take(self, *, unfinished: bool = False) -> Counted:
        """Returns the valid counts that were not returned before.

        Args:
            unfinished: Whether to include splits that will not be read to
                their end.

        Returns:
            The sums; empty if nothing was counted.
        """
        if unfinished:
            for split in list(self._by_split):
                self.finish(split)
        held, self._held = self._held, {}
        return held

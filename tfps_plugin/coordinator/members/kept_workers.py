"""Workers that one run names by `tf.device`, kept until it has ended."""

from collections.abc import Collection

from tfps_plugin.coordinator.elastic.uses import Use
from tfps_plugin.coordinator.members.pinned_workers import PinnedWorkers


class KeptWorkers:
    """The other workers that one run of a closure needs.

    They do not leave before it has ended: it would be cut, and run again.

    Threading: the lane's thread calls `require` and `release`, any thread
    calls `give_up`. It has no lock.
    """

    __slots__ = ("_is_bound", "_is_given_up", "_pinned_workers", "_uses")

    def __init__(
        self, pinned_workers: PinnedWorkers, *, is_bound: bool
    ) -> None:
        """Keeps no worker yet.

        Args:
            pinned_workers: Knows who is away, and keeps workers.
            is_bound: Whether only its own worker may run the closure. Then it
                runs now, also if a worker that it needs is about to leave.
        """
        self._pinned_workers = pinned_workers
        self._is_bound = is_bound
        self._uses: list[Use] = []
        self._is_given_up = False

    def require(self, workers: Collection[int]) -> dict[int, int]:
        """Keeps workers that a call needs; returns their generations.

        Args:
            workers: Their indices.

        Raises:
            PlacementError: If one does not belong to the cluster.
            WorkerAwayError: If one is away, or about to leave and not kept
                yet; the call is to be made later.
            WorkerLostError: If one has been away for too long.
        """
        kept = {each for use in self._uses for each in use.workers}
        if not_kept := set(workers) - kept:
            use = self._pinned_workers.keep(
                not_kept, also_leaving=self._is_bound
            )
            self._uses.append(use)
            if self._is_given_up:
                use.release()
        return self._pinned_workers.require(workers)

    def release(self) -> None:
        """Lets the workers leave."""
        if self._uses:
            uses, self._uses = self._uses, []
            for use in uses:
                use.release()

    def give_up(self) -> None:
        """Lets them leave from now on: the run may hang for ever."""
        self._is_given_up = True
        self.release()

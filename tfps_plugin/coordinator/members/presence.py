"""The methods of a coordinator that tell which tasks take part."""

import dataclasses

from tfps_plugin.coordinator.worker_pool import WorkerPool


@dataclasses.dataclass(frozen=True)
class Presence:
    """Part of one worker in the job.

    Attributes:
        index: Index of the worker.
        is_present: Whether it takes part.
        is_late: Whether it has never taken part.
        reason: Reason why it was given up, or not admitted; may be empty.
        generation: Number of times that it was lost and came back.
        closures_in_flight: Number of functions that it runs now.
        num_retries: Number of functions that did not complete on it, and were
            run again.
    """

    index: int
    is_present: bool
    is_late: bool = False
    reason: str = ""
    generation: int = 0
    closures_in_flight: int = 0
    num_retries: int = 0


class ObservedMembers:
    """Knows who takes part; a base class of the coordinator.

    Threading: any thread.
    """

    _pool: WorkerPool

    def presences(self) -> list[Presence]:
        """Returns the part of each worker in the job, by index."""
        membership = self._pool.membership
        workers = self._pool.workers
        reasons = membership.reasons
        absent = set(membership.absent)
        retries = self._pool.watch.rates.num_retries()
        return [
            Presence(
                index,
                is_present=index not in absent,
                is_late=membership.is_late(index),
                reason=reasons.get(index, "") if index in absent else "",
                generation=membership.generation(index),
                closures_in_flight=workers[index].num_busy,
                num_retries=retries.get(index, 0),
            )
            for index in membership.indices
            if index in workers
        ]

    def lost_ps(self) -> tuple[int, ...]:
        """Returns the parameter servers that are waited for or restored."""
        return tuple(task.index for task in self._pool.membership.lost_ps)

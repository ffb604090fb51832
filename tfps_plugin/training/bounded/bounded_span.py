"""Some steps that each worker makes by itself, but not far from the others."""

from collections.abc import Callable
from collections.abc import Sequence

import tensorflow as tf

from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.training.bounded import shares
from tfps_plugin.training.bounded.gate import Gate
from tfps_plugin.training.bounded.keeper import Keeper
from tfps_plugin.training.bounded.member_calls import MemberCalls
from tfps_plugin.training.synchronous.span import Span
from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.lookup import graph_checks


class BoundedSpan(Span):
    """Steps that are shared out to members, and that every ps watches.

    Guarantees: those of `Span`. On no ps does a member begin a step that is
    more than `max_staleness` ahead of the slowest member that has not left and
    has steps to make.
    Guarded by `_changed`: what the keepers have returned.

    Attributes:
        shares: Number of steps to make, by member.
        largest_staleness: The largest number of steps by which a member was
            ahead of the slowest when it began one; once the span has ended.
        num_in_doubt: Number of steps that may have been applied, at least in
            part, but are not among those that were made; likewise.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        gate: Gate,
        keepers: Sequence[Keeper],
        max_staleness: int,
        members: Sequence[int],
        num_steps: int,
        make: Callable[[int, int, MemberCalls], bool],
        on_ended: Callable[[], None],
    ) -> None:
        """Prepares the steps; `start` begins them.

        Args:
            coordinator: Runs the closures.
            gate: The queues of the step.
            keepers: The keeper of each ps.
            max_staleness: The bound.
            members: Indices of the workers that take part; at least one, and
                no more than steps.
            num_steps: Number of steps of all members together.
            make: Makes that many steps on a worker, on the thread of its lane,
                and records its calls; returns whether its input was long
                enough.
            on_ended: Called without arguments when the span has ended, on any
                thread.
        """
        self.shares = shares.shares(num_steps, members)
        self.largest_staleness = 0
        self.num_in_doubt = 0
        self._max_staleness = max_staleness
        self._calls = MemberCalls()
        super().__init__(
            coordinator,
            gate,
            keepers,
            None,
            None,
            members,
            num_steps,
            lambda worker, _: make(worker, self.shares[worker], self._calls),
            on_ended,
        )

    def hurry(self) -> None:
        """Lets members begin no further call."""
        for worker in self.members:
            self._calls.leaves(worker)

    def num_parts(self, worker: int) -> int:
        """Returns the number of steps that a member has made.

        Known once the span has ended. If some ps were lost, steps count of
        which the member itself has told.

        Args:
            worker: Index of the worker.
        """
        if self._are_clocks_known:
            return super().num_parts(worker)
        return self._calls.num_done(worker)

    @property
    def _are_clocks_known(self) -> bool:
        """True if all keepers have returned their clocks."""
        return len(self._results) == len(self._appliers)

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self.num_done = sum(map(self.num_parts, self.members))
            self.num_in_doubt = sum(
                self._calls.num_in_doubt(
                    worker,
                    self.num_parts(worker) if self._are_clocks_known else None,
                )
                for worker in self.members
            )

    def _member_ended(self, worker: int) -> None:
        self._calls.leaves(worker)
        super()._member_ended(worker)

    def _apply(self, applier: Keeper, values: Sequence[tf.Tensor]) -> None:
        del values
        with self._calling():
            with tf.device(graph_checks.CPU):
                arguments = (
                    tf.constant(
                        [
                            self.shares.get(worker, 0)
                            for worker in range(self._step.num_workers)
                        ],
                        tf.int64,
                    ),
                    tf.constant(self._max_staleness, tf.int64),
                )
            with tf.device(applier.device):
                made, largest = applier.function(*arguments)
            clocks, largest = worker_fetches.arrays([made, largest])
            lead = int(largest)
            with self._changed:
                self._results.append((int(clocks.sum()), [clocks]))
                self.largest_staleness = max(self.largest_staleness, lead)
                self._changed.notify_all()

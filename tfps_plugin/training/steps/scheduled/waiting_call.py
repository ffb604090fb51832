"""A scheduled function that waits until all workers have run it."""

from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.coordinator.closures.closure import ClosureState
from tfps_plugin.strategy.replicas.replica_results import ReplicaResults
from tfps_plugin.training.synchronous.together import Together


class WaitingCall:
    """A call that waits, and its results by worker.

    Attributes:
        call: Makes the call on the worker of the calling thread.
        together: What workers and ps need to make the step in it.
        round: The coordinator's round when it was scheduled.
        results: The results of the step, by worker.
        has_ended: Whether the listener was told of the outcome.
    """

    def __init__(
        self, call: Any, together: Together, listener: Any, in_round: int
    ) -> None:
        """Takes a call.

        Args:
            call: Makes the call.
            together: What workers and ps need to make the step in it.
            listener: Told of the outcome, as that of a closure.
            in_round: The coordinator's round.
        """
        self.call = call
        self.round = in_round
        self.together = together
        self.results: dict[int, Any] = {}
        self.has_ended = False
        self._listener = listener

    def may_follow(self, first: "WaitingCall") -> bool:
        """Returns whether it may be in one span with another call.

        With backup workers a late worker makes this step by the earlier call,
        so that call has to be the same.

        Args:
            first: The first call of the span.
        """
        if self.together is not first.together:
            return False
        return not self.together.step.num_backup or bool(
            self.call.has_arguments_of(first.call)
        )

    def tell(self, state: ClosureState, outcome: Any = None) -> None:
        """Tells the listener of the outcome.

        Args:
            state: The final state.
            outcome: The result or error.
        """
        self.has_ended = True
        self._listener.set_outcome(state, outcome, None)

    def done(self) -> None:
        """Tells that the step was made."""
        results = [self.results[worker] for worker in sorted(self.results)]
        if not results:
            self.tell(
                ClosureState.FAILED,
                errors.WorkerLostError(
                    "All workers that have made a synchronous step were lost "
                    "before they returned a result; expected one to live. The "
                    "step itself was made."
                ),
            )
            return
        self.tell(
            ClosureState.DONE,
            tf.nest.map_structure(
                lambda *values: ReplicaResults(values), *results
            ),
        )

"""How many steps go into one call of a worker. Pure: no TensorFlow."""

import dataclasses

# Beyond this, calls are rare enough that what each costs no longer shows.
_MOST_STEPS_PER_CLOSURE = 10
# With fewer calls than this per lane and epoch, the last calls of an epoch
# leave workers idle, and the progress bar hardly moves.
_CLOSURES_PER_LANE_AND_EPOCH = 4


def choose_steps_per_closure(steps_per_epoch: int, num_lanes: int) -> int:
    """How many steps to pack when the user has not said.

    Args:
        steps_per_epoch: Steps of one epoch.
        num_lanes: How many closures run at the same time.

    Returns:
        At least 1.
    """
    closures = _CLOSURES_PER_LANE_AND_EPOCH * num_lanes
    return max(1, min(_MOST_STEPS_PER_CLOSURE, steps_per_epoch // closures))


@dataclasses.dataclass
class StepCounter:
    """Counts the steps of one epoch that were asked for and handed out.

    Keras asks for steps one call of its loop at a time; workers are given
    several at once. Nothing is asked beyond the end of the epoch, even where
    `steps_per_execution` does not divide it.

    Attributes:
        steps_per_epoch: Steps of one epoch.
        steps_per_request: Steps that Keras means by one call.
        steps_per_closure: Steps to hand out at once.
        asked: Steps asked for in this epoch.
        handed_out: Steps handed out in this epoch.
    """

    steps_per_epoch: int
    steps_per_request: int
    steps_per_closure: int
    asked: int = 0
    handed_out: int = 0

    def begin_epoch(self) -> None:
        """Starts to count from zero."""
        self.asked = 0
        self.handed_out = 0

    def ask(self) -> list[int]:
        """Takes one request of Keras.

        Returns:
            The sizes of the closures that are complete now.
        """
        self.asked = min(
            self.asked + self.steps_per_request, self.steps_per_epoch
        )
        complete = []
        while self.asked - self.handed_out >= self.steps_per_closure:
            complete.append(self.steps_per_closure)
            self.handed_out += self.steps_per_closure
        return complete

    def flush(self) -> int:
        """Hands out what was asked for and not yet handed out.

        Returns:
            Number of steps, perhaps zero.
        """
        rest = self.asked - self.handed_out
        self.handed_out = self.asked
        return rest

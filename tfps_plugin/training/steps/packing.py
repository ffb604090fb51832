"""How many steps go into one call of a worker. Pure: no TensorFlow."""

# Beyond this, calls are rare enough that what each costs no longer shows.
_MOST_STEPS_PER_CLOSURE = 10
# With fewer calls than this per lane and epoch, the last calls of an epoch
# leave workers idle, and the progress bar hardly moves.
_CLOSURES_PER_LANE_AND_EPOCH = 4


def choose_steps_per_closure(num_steps: int, num_lanes: int) -> int:
    """How many steps to pack when the user has not said.

    Args:
        num_steps: Steps of one epoch; where nobody knows that, of the one
            before, or those of this epoch so far.
        num_lanes: How many closures run at the same time.

    Returns:
        At least 1.
    """
    closures = _CLOSURES_PER_LANE_AND_EPOCH * num_lanes
    return max(1, min(_MOST_STEPS_PER_CLOSURE, num_steps // closures))

"""Number of steps that each member of a span makes. Pure: no TensorFlow."""

from collections.abc import Sequence

# A span ends with all members at the same step. So it has to be long, compared
# with the number of steps that they may be apart.
_SPREADS_PER_SPAN = 4
# The chief holds the batches of one span, and reads those of the next. Calls
# without a bound have as many in flight.
_MOST_HELD_PER_MEMBER = 20


def shares(num_steps: int, members: Sequence[int]) -> dict[int, int]:
    """Returns the number of steps of each member; they differ by one at most.

    Args:
        num_steps: Number of steps of all members together.
        members: Indices of the workers; at least one.
    """
    least, num_more = divmod(num_steps, len(members))
    return {
        worker: least + (place < num_more)
        for place, worker in enumerate(members)
    }


def steps_of_a_member(steps_of_a_call: int, max_staleness: int) -> int:
    """Returns the number of steps that a member makes in a span.

    Args:
        steps_of_a_call: Number of steps that make a call long enough.
        max_staleness: The bound.
    """
    return max(steps_of_a_call, _SPREADS_PER_SPAN * max_staleness)


def batches_of_a_member(steps_of_a_call: int, max_staleness: int) -> int:
    """Returns the same where the chief holds the batches of a span.

    Args:
        steps_of_a_call: Number of steps that make a call long enough.
        max_staleness: The bound.
    """
    return min(
        steps_of_a_member(steps_of_a_call, max_staleness), _MOST_HELD_PER_MEMBER
    )

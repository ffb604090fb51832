"""How many steps a round of a worker's loop makes. Pure: no TensorFlow.

Several steps in one round share messages: the ids of the next step leave with
the gradients of this one, and parameter servers hear of a new round more
rarely. But the loop's function is as many times as large: to put it together,
and to prepare it on each worker, takes so much longer, after each change of the
cluster again.
"""

# More do not make it faster: 2 messages of a step and parameter server are what
# it comes to, and with four it is two and a quarter.
MOST_STEPS = 4
# Of a round: prepared within seconds.
_MOST_OPERATIONS = 6_000
# What is put together for a short `fit` does not pay.
_STEPS_BEFORE = 500
# Of a call, which takes about a second: batches of steps that take longer may
# be large, and a worker has those of a round in memory at the same time.
_STEPS_OF_A_CALL = 4 * MOST_STEPS


def steps_of_a_round(num_operations: int) -> int:
    """How many steps a round makes, once that pays.

    Args:
        num_operations: Of one step.

    Returns:
        At least 1.
    """
    return max(1, min(MOST_STEPS, _MOST_OPERATIONS // max(1, num_operations)))


def pays(steps_so_far: int, steps_of_a_call: int) -> bool:
    """Whether a model is trained for so long that larger rounds pay.

    Args:
        steps_so_far: That calls have made.
        steps_of_a_call: That each makes.
    """
    return steps_so_far >= _STEPS_BEFORE and steps_of_a_call >= _STEPS_OF_A_CALL


def in_whole_ones(steps_of_a_call: int) -> int:
    """How many steps to make in place of so many.

    Of calls for which rounds may pay, whole rounds: what is left over takes
    another call.

    Args:
        steps_of_a_call: About as many.

    Returns:
        As many or fewer, but at least 1.
    """
    whole = steps_of_a_call - steps_of_a_call % MOST_STEPS
    return max(1, whole if whole >= _STEPS_OF_A_CALL else steps_of_a_call)

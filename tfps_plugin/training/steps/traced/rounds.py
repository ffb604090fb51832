"""Number of steps in a round of a worker's loop. Pure: no TensorFlow.

Several steps in one round share messages: the ids of the next step leave with
the gradients of this one, and parameter servers start fewer rounds. But the
loop's function grows in proportion: building it, and preparing it on each
worker, takes that much longer, and again after each change of the cluster.
"""

# More steps do not help: the limit is 2 messages per step and parameter server,
# and with four steps it is 2.25.
MOST_STEPS = 4
# Largest number in a round, which workers can prepare within seconds.
_MOST_OPERATIONS = 6_000
# Building rounds does not pay for a short `fit`.
_STEPS_BEFORE = 500
# Fewest steps of a call of about a second: batches of slower steps may be
# large, and a worker has all batches of a round in memory at the same time.
_STEPS_OF_A_CALL = 4 * MOST_STEPS


def steps_of_a_round(num_operations: int) -> int:
    """Returns the number of steps of a round, once rounds pay.

    Args:
        num_operations: Number of operations of one step.

    Returns:
        At least 1.
    """
    return max(1, min(MOST_STEPS, _MOST_OPERATIONS // max(1, num_operations)))


def pays(steps_so_far: int, steps_of_a_call: int) -> bool:
    """Returns whether a model is trained for long enough for larger rounds.

    Args:
        steps_so_far: Number of steps that calls have made.
        steps_of_a_call: Number of steps of each call.
    """
    return steps_so_far >= _STEPS_BEFORE and steps_of_a_call >= _STEPS_OF_A_CALL


def in_whole_ones(steps_of_a_call: int) -> int:
    """Rounds a number of steps down to whole rounds.

    Only applies to calls for which rounds may pay: the remaining steps would
    need another call.

    Returns:
        The same number or a smaller one, but at least 1.
    """
    whole = steps_of_a_call - steps_of_a_call % MOST_STEPS
    return max(1, whole if whole >= _STEPS_OF_A_CALL else steps_of_a_call)

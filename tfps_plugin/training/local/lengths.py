"""Numbers of steps that are whole rounds of local steps. Pure."""


def at_least(num_steps: int, local_steps: int) -> int:
    """Returns a number of steps, rounded up to whole rounds.

    Args:
        num_steps: Number of steps.
        local_steps: Number of steps of a round.
    """
    return -(-num_steps // local_steps) * local_steps


def at_most(num_steps: int, local_steps: int) -> int:
    """Returns a number of steps, rounded down to whole rounds.

    Args:
        num_steps: Number of steps.
        local_steps: Number of steps of a round.
    """
    return num_steps // local_steps * local_steps

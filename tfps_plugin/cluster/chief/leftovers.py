"""Frees resources of an earlier connection on a task.

A task keeps named resources for functions of the chief (see
`variables.handle_area`), and they would outlive the chief: tables of a program
that crashed would stay in memory beside those of its successor. All are in one
resource container of TensorFlow, which its servers empty on request.
"""

import logging
from collections.abc import Iterable

from tfps_plugin.cluster import health
from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

# Contains all resources for functions, and nothing else.
CONTAINER = "tfps"

_METHOD = "/tensorflow.WorkerService/CleanupAll"
_STRING_IN_FIELD_1 = 0x0A
_TIMEOUT_SECONDS = 10.0


def free(tasks: Iterable[Task]) -> None:
    """Makes tasks empty the container; logs those that it cannot reach.

    Args:
        tasks: The tasks, with their current addresses.
    """
    name = CONTAINER.encode()
    # A CleanupAllRequest is a list of names. TensorFlow ships no Python code
    # for it.
    request = bytes([_STRING_IN_FIELD_1, len(name)]) + name
    outcomes = bounded_calls.call_all(
        lambda task: health.call(
            task.address, _METHOD, request, _TIMEOUT_SECONDS
        ),
        tasks,
        # The margin lets the calls themselves tell why they failed.
        _TIMEOUT_SECONDS + 1.0,
    )
    for task, outcome in outcomes.items():
        if outcome.error is not None:
            _logger.warning(
                "%s at %s was not told to free what functions of an earlier "
                "chief have left there, such as their tables: %s",
                task,
                task.address,
                outcome.error,
            )

"""Detection of errors of TensorFlow's runtime that are about the cluster.

Only the text of an exception distinguishes a dead task from a user's mistake.
Pure: no TensorFlow.
"""

import re

# Raised by the runtime itself when a task, a connection or a deadline fails.
_RUNTIME_TYPES = frozenset(
    {"UnavailableError", "AbortedError", "DeadlineExceededError"}
)
# The runtime raises these about the cluster, but user code raises them as well;
# the text tells the two apart.
_AMBIGUOUS_TYPES = frozenset(
    {
        "CancelledError",
        "FailedPreconditionError",
        "InternalError",
        "InvalidArgumentError",
        "NotFoundError",
        "UnknownError",
    }
)
# Without "GRPC error information from remote target", which is added to all
# errors of remote functions, the user's own included.
_RUNTIME_TEXTS = (
    "Unable to find a context_id matching",
    "Unable to find the relevant tensor remote_handle",
    "remote workers have been restarted",
    "contains an invalid device",
    "Could not find worker with target",
    # A result on a worker that has since been taken out of the cluster.
    "No worker known as",
    # A value from a task that has been taken out of the cluster.
    "Client for target /job:",
    # A value that was in transit while the cluster changed.
    "found to be poisoned",
    "RecvFromRemoteAsync is cancelled",
    "Socket closed",
    "Stream removed",
    "Connection reset by peer",
    "failed to connect to all addresses",
    # A function that was prepared for a ps that has since been replaced.
    "Could not find function library for registered component function",
    # Handles that a ps has not got back yet, since it was replaced; see
    # `variables.kinds.handle_areas`.
    "Could not find variable handles_",
    # A task received garbage from another; see `WorkerCalls`.
    "Unable to parse request",
)
# TensorFlow sends its functions to a task that joins, and does not wait until
# they have arrived. An operation that the task does not have reads alike.
_UNKNOWN_FUNCTION = re.compile(
    r"'__(?:inference|forward|backward)_[^']*' is neither a type of a "
    r"primitive operation nor a name of a function"
)


def is_about_the_cluster(type_name: str, text: str) -> bool:
    """Returns whether an exception points at a task, not at the user's code."""
    if type_name in _RUNTIME_TYPES:
        return True
    if type_name not in _AMBIGUOUS_TYPES:
        return False
    if any(marker in text for marker in _RUNTIME_TEXTS):
        return True
    if type_name == "CancelledError":
        # The rest of a step, after another part failed on some task.
        return "/job:" in text
    if "/job:" not in text:
        return False
    # A task that was just taken out of the cluster is an unknown device.
    return "unknown device" in text or lacks_function(text)


def lacks_function(text: str) -> bool:
    """Returns whether a task says that it does not know a function."""
    return _UNKNOWN_FUNCTION.search(text) is not None

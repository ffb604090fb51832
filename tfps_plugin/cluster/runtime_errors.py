"""Which errors of TensorFlow's runtime are about the cluster.

The runtime tells a dead task from a mistake of the user's only in the text of
an exception. Pure: no TensorFlow.
"""

# Raised by the runtime itself when a task, a connection or a deadline fails.
_RUNTIME_TYPES = frozenset(
    {"UnavailableError", "AbortedError", "DeadlineExceededError"}
)
# Raised by the runtime about the cluster, but by user code as well; which of
# the two it is shows in the text.
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
# "GRPC error information from remote target" is none of them: it is added to
# whatever a remote function raises, the user's own errors included.
_RUNTIME_TEXTS = (
    "Unable to find a context_id matching",
    "Unable to find the relevant tensor remote_handle",
    "remote workers have been restarted",
    "contains an invalid device",
    "Could not find worker with target",
    # A result on a worker that has been taken out of the cluster since.
    "No worker known as",
    # A value from a task that has been taken out of the cluster.
    "Client for target /job:",
    # A value that was on its way while the cluster changed.
    "found to be poisoned",
    "RecvFromRemoteAsync is cancelled",
    "Socket closed",
    "Stream removed",
    "Connection reset by peer",
    "failed to connect to all addresses",
    # A function that was prepared for a ps that was replaced since.
    "Could not find function library for registered component function",
    # What one task wrote made no sense to another; see `WorkerCalls`.
    "Unable to parse request",
)


def is_about_the_cluster(type_name: str, text: str) -> bool:
    """Whether an exception points at a task, and not at the user's code.

    Args:
        type_name: Name of the exception's class.
        text: Its message.
    """
    if type_name in _RUNTIME_TYPES:
        return True
    if type_name not in _AMBIGUOUS_TYPES:
        return False
    if any(marker in text for marker in _RUNTIME_TEXTS):
        return True
    if type_name == "CancelledError":
        # The rest of a step whose other part failed on some task.
        return "/job:" in text
    # A task that was just taken out of the cluster is an unknown device.
    return "/job:" in text and "unknown device" in text

"""Every exception that tfps_plugin raises on its own account.

    TfpsError
    ├── ClusterConfigurationError (ValueError)   the cluster's description
    ├── ClusterStartTimeoutError (TimeoutError)  tasks did not answer in time
    ├── TaskStartError (RuntimeError)            a task's process cannot start
    ├── TaskUnreachableError (ConnectionError)   one task does not answer now
    ├── TaskLostError (ConnectionError)          a task died during the job
    │   ├── WorkerLostError                      no worker is left to go on with
    │   ├── ClosureLosesWorkersError             one function, many lost workers
    │   └── ParameterServerLostError             variables on it are gone
    ├── PartitioningError (ValueError)           a variable cannot be cut so
    ├── VariableCreationError (ValueError)       a variable cannot be made here
    ├── ClosureCancelledError (RuntimeError)     the closure was cut short
    ├── InputError (ValueError)                  input that cannot be honoured
    ├── CheckpointNotFoundError (FileNotFoundError)  nothing to evaluate
    ├── CheckpointUnreadableError (OSError)      no checkpoint is undamaged
    ├── CheckpointMismatchError (ValueError)     it does not fit the program
    ├── UnsupportedError (NotImplementedError)   refused, with the way out
    └── InternalError                            a bug of ours: please report it

What a user's own step raises is never wrapped: it arrives as itself.
`retryable` says whether trying the same call again may help.
"""

from typing import TYPE_CHECKING


class TfpsError(Exception):
    """Root of the tree; catch it to catch everything of ours."""

    retryable = False

    # What is raised while a tf.function is traced, AutoGraph raises again with
    # the user's source lines in its message, as the same class if that has
    # this very constructor and as a StagingError otherwise.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class ClusterConfigurationError(TfpsError, ValueError):
    """`TF_CONFIG` or a cluster resolver does not describe a usable cluster."""


class ClusterStartTimeoutError(TfpsError, TimeoutError):
    """Some tasks of the cluster did not answer before the deadline."""

    retryable = True


class TaskStartError(TfpsError, RuntimeError):
    """The process of a task ended, or cannot serve, before it was ready."""


class TaskUnreachableError(TfpsError, ConnectionError):
    """A task's server does not answer at its address now.

    Attributes:
        address: Where it was asked.
        reason: What the connection said.
    """

    retryable = True

    def __init__(self, message: str, *, address: str, reason: str) -> None:
        super().__init__(message)
        self.address = address
        self.reason = reason


class TaskLostError(TfpsError, ConnectionError):
    """A task of the running job died."""


class WorkerLostError(TaskLostError):
    """No worker is left, or one did not come back before the deadline."""

    retryable = True


class ClosureLosesWorkersError(TaskLostError):
    """Worker after worker was lost while it ran the same closure."""


class ParameterServerLostError(TaskLostError):
    """A parameter server died, and with it the variables it held."""


class PartitioningError(TfpsError, ValueError):
    """A partitioner's answer cannot be used for this variable."""


class VariableCreationError(TfpsError, ValueError):
    """A variable cannot be created here or with these arguments."""


class ClosureCancelledError(TfpsError, RuntimeError):
    """The closure was cancelled because another one failed, or by the user."""


class InputError(TfpsError, ValueError):
    """Training input that parameter-server training cannot honour."""


class CheckpointNotFoundError(TfpsError, FileNotFoundError):
    """An evaluator has ended, and there was no checkpoint for it."""


class CheckpointUnreadableError(TfpsError, OSError):
    """There are checkpoints, and all of them are damaged."""


class CheckpointMismatchError(TfpsError, ValueError):
    """A checkpoint has other names, shapes or dtypes than the program."""


class UnsupportedError(TfpsError, NotImplementedError):
    """Something that is refused; the message names the way out."""


class InternalError(TfpsError):
    """A promise inside tfps_plugin was broken: please report it."""

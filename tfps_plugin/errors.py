"""Exceptions of tfps_plugin.

    TfpsError
    ├── ClusterConfigurationError (ValueError)   invalid cluster description
    ├── ClusterStartTimeoutError (TimeoutError)  tasks did not answer in time
    ├── TaskStartError (RuntimeError)            a task's process cannot start
    ├── TaskUnreachableError (ConnectionError)   one task does not answer now
    ├── TaskLostError (UnavailableError)         a task died during the job
    │   ├── WorkerLostError                      no worker is left
    │   ├── ClosureLosesWorkersError             one function, many lost workers
    │   └── ParameterServerLostError             variables on it are gone
    ├── PartitioningError (ValueError)           invalid number of shards
    ├── VariableCreationError (ValueError)       a variable cannot be created
    ├── PlacementError (ValueError)              no place that the cluster has
    ├── ClosureCancelledError (CancelledError)   the closure was cancelled
    ├── StrategySupersededError (RuntimeError)   a newer strategy replaced it
    ├── InputError (ValueError)                  unsupported training input
    ├── PlanError (ValueError)                   nothing can be planned
    ├── CheckpointNotFoundError (FileNotFoundError)  nothing to evaluate
    ├── CheckpointUnreadableError (OSError)      all checkpoints are damaged
    ├── ExportUnreadableError (OSError)          an export is damaged
    ├── CheckpointMismatchError (ValueError)     it does not fit the program
    ├── JobUnreachableError (ConnectionError)    a job cannot be watched
    ├── UnsupportedError (NotImplementedError)   unsupported; names a way out
    │   └── OptimizerNotBuiltError               a step needs its slots before
    └── InternalError                            a bug of tfps_plugin

An exception of the user's own step is never wrapped; it is raised as it is.
The attribute `retryable` tells whether repeating the same call may help.

`UnavailableError` and `CancelledError` are those of `tf.errors`. The classes
derived from them are also a `ConnectionError` and a `RuntimeError`. They are
defined in `task_errors.py` and loaded, together with TensorFlow, on first use.
"""

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    # The same names once more, for type checkers and editors.
    from tfps_plugin.task_errors import (
        ClosureCancelledError as ClosureCancelledError,
    )
    from tfps_plugin.task_errors import (
        ClosureLosesWorkersError as ClosureLosesWorkersError,
    )
    from tfps_plugin.task_errors import (
        ParameterServerLostError as ParameterServerLostError,
    )
    from tfps_plugin.task_errors import TaskLostError as TaskLostError
    from tfps_plugin.task_errors import WorkerLostError as WorkerLostError

_OF_TASKS = (
    "ClosureCancelledError",
    "ClosureLosesWorkersError",
    "ParameterServerLostError",
    "TaskLostError",
    "WorkerLostError",
)


def __getattr__(name: str) -> Any:
    """Loads an exception that derives from TensorFlow's, on its first use."""
    if name not in _OF_TASKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module("tfps_plugin.task_errors"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TASKS})


class TfpsError(Exception):
    """Base class of all exceptions of tfps_plugin.

    Attributes:
        retryable: Whether repeating the same call may help.
    """

    retryable = False

    # AutoGraph raises an exception again with the user's source lines in its
    # message: as the same class if that has this very constructor, otherwise
    # as a StagingError.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__


class ClusterConfigurationError(TfpsError, ValueError):
    """`TF_CONFIG` or a cluster resolver does not describe a usable cluster."""


class ClusterStartTimeoutError(TfpsError, TimeoutError):
    """Some tasks of the cluster did not answer before the deadline."""

    retryable = True


class TaskStartError(TfpsError, RuntimeError):
    """The process of a task ended or failed before it was ready."""


class TaskUnreachableError(TfpsError, ConnectionError):
    """A task's server does not answer at its address now.

    Args:
        message: The message.
        address: Address of the task, `host:port`.
        reason: Error of the connection.

    Attributes:
        address: Address of the task, `host:port`.
        reason: Error of the connection.
    """

    retryable = True

    def __init__(self, message: str, *, address: str, reason: str) -> None:
        super().__init__(message)
        self.address = address
        self.reason = reason


class JobUnreachableError(TfpsError, ConnectionError):
    """A job cannot be watched: its chief does not answer, or refuses to."""


class PartitioningError(TfpsError, ValueError):
    """A partitioner returned an invalid number of shards for a variable."""


class VariableCreationError(TfpsError, ValueError):
    """A variable cannot be created here or with these arguments."""


class PlacementError(TfpsError, ValueError):
    """A function names a task by `tf.device` that cannot serve it.

    The cluster does not have the task, or does not have it any more; or the
    function returns what it computes on the chief.
    """


class StrategySupersededError(TfpsError, RuntimeError):
    """The strategy was ended by a newer one or by the end of the cluster."""


class InputError(TfpsError, ValueError):
    """The training input is not supported in parameter-server training."""


class PlanError(TfpsError, ValueError):
    """Nothing can be planned for the program, or with these numbers."""


class CheckpointNotFoundError(TfpsError, FileNotFoundError):
    """An evaluator ended without having found a checkpoint to evaluate."""


class CheckpointUnreadableError(TfpsError, OSError):
    """There are checkpoints, but none of them can be read."""


class CheckpointMismatchError(TfpsError, ValueError):
    """A checkpoint has other names, shapes or dtypes than the program."""


class ExportUnreadableError(TfpsError, OSError):
    """An export of tables is damaged, missing or not the program's own."""


class UnsupportedError(TfpsError, NotImplementedError):
    """The call is not supported; the message names an alternative."""


class OptimizerNotBuiltError(UnsupportedError):
    """A step builds an optimizer whose slots it needs before."""

    retryable = True


class InternalError(TfpsError):
    """An internal invariant of tfps_plugin was broken; please report it."""

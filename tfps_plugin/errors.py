"""Every exception that tfps_plugin raises on its own account.

    TfpsError
    ├── ClusterConfigurationError (ValueError)   the cluster's description
    ├── ClusterStartTimeoutError (TimeoutError)  tasks did not answer in time
    ├── TaskStartError (RuntimeError)            a task's process cannot start
    ├── TaskUnreachableError (ConnectionError)   one task does not answer now
    ├── TaskLostError (UnavailableError)         a task died during the job
    │   ├── WorkerLostError                      no worker is left to go on with
    │   ├── ClosureLosesWorkersError             one function, many lost workers
    │   └── ParameterServerLostError             variables on it are gone
    ├── PartitioningError (ValueError)           a variable cannot be cut so
    ├── VariableCreationError (ValueError)       a variable cannot be made here
    ├── ClosureCancelledError (CancelledError)   the closure was cut short
    ├── StrategySupersededError (RuntimeError)   another strategy took its place
    ├── InputError (ValueError)                  input that cannot be honoured
    ├── CheckpointNotFoundError (FileNotFoundError)  nothing to evaluate
    ├── CheckpointUnreadableError (OSError)      no checkpoint is undamaged
    ├── CheckpointMismatchError (ValueError)     it does not fit the program
    ├── UnsupportedError (NotImplementedError)   refused, with the way out
    └── InternalError                            a bug of ours: please report it

What a user's own step raises is never wrapped: it arrives as itself.
`retryable` says whether trying the same call again may help.

`UnavailableError` and `CancelledError` are those of `tf.errors`: the classes
that have them as a base stand in `task_errors.py` and are loaded, with
TensorFlow, when one of them is first asked for. They are a `ConnectionError`
and a `RuntimeError`, too.
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
    """Loads an exception that is TensorFlow's, too; called once for each."""
    if name not in _OF_TASKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module("tfps_plugin.task_errors"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_OF_TASKS})


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


class PartitioningError(TfpsError, ValueError):
    """A partitioner's answer cannot be used for this variable."""


class VariableCreationError(TfpsError, ValueError):
    """A variable cannot be created here or with these arguments."""


class StrategySupersededError(TfpsError, RuntimeError):
    """A newer strategy, or the end of the cluster, has ended this one."""


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

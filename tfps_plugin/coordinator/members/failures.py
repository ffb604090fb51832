"""Failures of closures: the tasks that an exception points at. Pure.

TensorFlow's runtime names the task that failed only in the text of the
exception. The text is a suspicion, not a proof: a worker reports a dead ps,
and other tasks report a dead worker. So the suspects are probed before
anything is done.
"""

import dataclasses
import enum
import re

from tfps_plugin.cluster.runtime_errors import is_about_the_cluster
from tfps_plugin.cluster.runtime_errors import lacks_function


class FailureKind(enum.Enum):
    """Kind of failure that an exception looks like."""

    SUSPECT_WORKER = "suspect worker"
    SUSPECT_PS = "suspect ps"
    TRANSIENT = "transient"
    USER = "user"


@dataclasses.dataclass(frozen=True)
class Failure:
    """Failure that an exception's name and text suggest.

    Attributes:
        kind: The kind of failure.
        workers: Indices of the workers to probe, likelier ones first. The
            worker that ran the closure is always among them unless the error
            is the user's own.
        ps: Indices of the parameter servers to probe, likelier ones first.
        broken_worker: Index of a worker that may live but be of no use; see
            `_CLEANED_UP`, `_DOES_NOT_KNOW_PS`, `_GOES_ON`, `lacks_function`.
        broken_ps: Likewise, of a parameter server.
        function_is_stale: Whether the worker takes a function for prepared
            that is not; see `_GOES_ON`.
    """

    kind: FailureKind
    workers: tuple[int, ...] = ()
    ps: tuple[int, ...] = ()
    broken_worker: int | None = None
    broken_ps: int | None = None
    function_is_stale: bool = False


_USER = Failure(FailureKind.USER)

_ANY_TASK = re.compile(r"/job:(worker|ps)(?:/replica:\d+)?/task:(\d+)")
# A task that was given up while it lived, and then readmitted, still cleans up
# what it ran before. With that, TensorFlow's runtime closes for good the
# rendezvous through which the task receives values: the old and the new
# connection share its number, which may be negative.
_CLEANED_UP = re.compile(r"\bCleanup -?\d+")
# The worker was not told that a parameter server is back.
_DOES_NOT_KNOW_PS = "No worker known as /job:ps"
# A call that was cancelled goes on within a long operation on the worker. So
# TensorFlow takes its function for prepared there, although a parameter server
# has come back without its part.
_GOES_ON = "Could not find function library for registered component function"
_REMOTE_TARGET = re.compile(
    r"remote target /job:(worker|ps)(?:/replica:\d+)?/task:(\d+)"
)


def classify(type_name: str, text: str, worker_index: int) -> Failure:
    """Returns the failure that an exception of a closure suggests.

    Args:
        type_name: Name of the exception's class.
        text: Its message.
        worker_index: The worker that the closure was dispatched to.

    Returns:
        The failure; of kind `USER` if nothing suggests the cluster.
    """
    if not is_about_the_cluster(type_name, text):
        return _USER
    workers, ps = _named_tasks(text)
    broken_worker = broken_ps = None
    if _DOES_NOT_KNOW_PS in text or _GOES_ON in text:
        broken_worker = worker_index
    elif _CLEANED_UP.search(text) or lacks_function(text):
        # All functions are sent again to a task that is added anew.
        if ps and not workers:
            broken_ps = ps[0]
        else:
            broken_worker = workers[0] if workers else worker_index
    points_at_worker = bool(workers)
    points_at_ps = bool(ps)
    if worker_index not in workers:
        workers = (*workers, worker_index)
    if points_at_ps:
        # A worker that reports a dead ps is named in the text too, because
        # the step ran there. The ps is the likelier culprit.
        kind = FailureKind.SUSPECT_PS
    elif points_at_worker or type_name in ("UnavailableError", "AbortedError"):
        kind = FailureKind.SUSPECT_WORKER
    else:
        kind = FailureKind.TRANSIENT
    return Failure(
        kind,
        workers,
        ps,
        broken_worker,
        broken_ps,
        function_is_stale=_GOES_ON in text,
    )


def named_ps(text: str) -> tuple[int, ...]:
    """Returns the indices of the ps that a message names, each once."""
    return _named_tasks(text)[1]


def _named_tasks(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the workers and ps that the text names, in order, once each."""
    # If the runtime says which task did not answer, the others are bystanders.
    found = _REMOTE_TARGET.findall(text) or _ANY_TASK.findall(text)
    named: dict[str, list[int]] = {"worker": [], "ps": []}
    for job, index_text in found:
        index = int(index_text)
        if index not in named[job]:
            named[job].append(index)
    return tuple(named["worker"]), tuple(named["ps"])


class Verdict(enum.Enum):
    """Decision on a closure whose run raised."""

    RUN_AGAIN = "run again"
    RUN_AGAIN_COUNTED = "run again, counted"
    GIVE_UP = "give up"
    RAISE = "raise"


def judge(
    kind: FailureKind,
    *,
    worker_is_lost: bool,
    ps_was_away: bool = False,
    num_transient_retries: int,
    max_transient_retries: int,
) -> Verdict:
    """Decides on a closure whose run raised.

    Args:
        kind: The kind of failure that the exception suggests.
        worker_is_lost: Whether the worker that ran it was found dead or
            restarted, or was given up, since the run began.
        ps_was_away: Whether a ps is being recovered, or was a moment ago.
        num_transient_retries: Number of times this closure already ran again
            although all tasks were healthy.
        max_transient_retries: Limit of that number.

    Returns:
        `RUN_AGAIN`: on another worker or later, not counted.
        `RUN_AGAIN_COUNTED`: after a pause, as one of the allowed retries.
        `GIVE_UP`: no retries are left. `RAISE`: the error is the user's own.
    """
    if kind is FailureKind.USER:
        return Verdict.RAISE
    if worker_is_lost or ps_was_away:
        return Verdict.RUN_AGAIN
    if num_transient_retries < max_transient_retries:
        return Verdict.RUN_AGAIN_COUNTED
    return Verdict.GIVE_UP


def pause_seconds(num_transient_retries: int) -> float:
    """Returns the seconds that a lane waits before it puts a closure back.

    Doubles from 0.1 s up to 2 s: five retries take three seconds, so that a
    broken connection has time to recover.
    """
    return float(min(2.0, 0.1 * 2.0**num_transient_retries))


def rest_seconds(num_failures: int) -> float:
    """Returns the seconds that a lane rests after failures in a row.

    A worker that cannot reach a parameter server fails every closure, faster
    than other workers succeed. The rest is 0 after the first failure, then
    doubles from 1 s up to 30 s.

    Args:
        num_failures: Failures of the lane without a success in between, while
            all tasks were healthy.
    """
    if num_failures < 2:
        return 0.0
    return float(min(30.0, 2.0 ** min(5, num_failures - 2)))

"""What an exception of a closure points at.

TensorFlow's runtime says which task failed only in the text of the exception.
The text is a suspicion, no proof: a worker reports a dead ps, a dead worker is
reported by its peers. Whoever acts on it asks the suspects first.
"""

import dataclasses
import enum
import re

from tfps_plugin.cluster.runtime_errors import is_about_the_cluster


class FailureKind(enum.Enum):
    """What kind of failure an exception looks like."""

    SUSPECT_WORKER = "suspect worker"
    SUSPECT_PS = "suspect ps"
    TRANSIENT = "transient"
    USER = "user"


@dataclasses.dataclass(frozen=True)
class Failure:
    """What an exception looks like from its name and text.

    Attributes:
        kind: The kind of failure.
        workers: Indices of the workers to ask whether they live, the likelier
            ones first. The worker that ran the closure is always among them
            unless the error is the user's own.
        ps: Indices of the parameter servers to ask, the likelier ones first.
        broken_worker: Index of a worker that may live and be of no use; see
            `_CLEANED_UP`, `_DOES_NOT_KNOW_PS`.
        broken_ps: Likewise, of a parameter server.
    """

    kind: FailureKind
    workers: tuple[int, ...] = ()
    ps: tuple[int, ...] = ()
    broken_worker: int | None = None
    broken_ps: int | None = None


_USER = Failure(FailureKind.USER)

_ANY_TASK = re.compile(r"/job:(worker|ps)(?:/replica:\d+)?/task:(\d+)")
# A task that was given up while it lived, and was taken back, still ends what
# it had begun before. With that, TensorFlow's runtime closes what the task
# receives values by, for good: both connections go by the same number.
_CLEANED_UP = re.compile(r"\bCleanup \d+")
# A worker that was not told that a parameter server is back.
_DOES_NOT_KNOW_PS = "No worker known as /job:ps"
_REMOTE_TARGET = re.compile(
    r"remote target /job:(worker|ps)(?:/replica:\d+)?/task:(\d+)"
)


def classify(type_name: str, text: str, worker_index: int) -> Failure:
    """Says what an exception of a closure points at.

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
    if _DOES_NOT_KNOW_PS in text:
        broken_worker = worker_index
    elif _CLEANED_UP.search(text):
        if ps and not workers:
            broken_ps = ps[0]
        else:
            broken_worker = workers[0] if workers else worker_index
    points_at_worker = bool(workers)
    points_at_ps = bool(ps)
    if worker_index not in workers:
        workers = (*workers, worker_index)
    if points_at_ps:
        # A worker that reports a dead ps is itself named in the text, as the
        # place where the step ran: the ps is the likelier culprit.
        return Failure(
            FailureKind.SUSPECT_PS, workers, ps, broken_worker, broken_ps
        )
    if points_at_worker or type_name in ("UnavailableError", "AbortedError"):
        return Failure(
            FailureKind.SUSPECT_WORKER, workers, broken_worker=broken_worker
        )
    return Failure(FailureKind.TRANSIENT, workers)


def named_ps(text: str) -> tuple[int, ...]:
    """Indices of the parameter servers that a message names, each once."""
    return _named_tasks(text)[1]


def _named_tasks(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Workers and ps named in the text, in order, each once."""
    # Where the runtime says who did not answer, other names are bystanders.
    found = _REMOTE_TARGET.findall(text) or _ANY_TASK.findall(text)
    named: dict[str, list[int]] = {"worker": [], "ps": []}
    for job, index_text in found:
        index = int(index_text)
        if index not in named[job]:
            named[job].append(index)
    return tuple(named["worker"]), tuple(named["ps"])


class Verdict(enum.Enum):
    """What is done about a closure whose run raised."""

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
    """Says what is done about a closure whose run raised.

    Args:
        kind: What the exception looks like.
        worker_is_lost: Whether the worker that ran it was found dead or
            restarted, or had been given up since the run began.
        ps_was_away: Whether a ps is being brought back, or was just now.
        num_transient_retries: How often this closure was already run again
            although every task it touched was well.
        max_transient_retries: How often that may be.

    Returns:
        `RUN_AGAIN`, on another worker or later, for free;
        `RUN_AGAIN_COUNTED` after a pause, as one of the allowed retries;
        `GIVE_UP` when those are used up; `RAISE` when the error is the
        user's own.
    """
    if kind is FailureKind.USER:
        return Verdict.RAISE
    if worker_is_lost or ps_was_away:
        return Verdict.RUN_AGAIN
    if num_transient_retries < max_transient_retries:
        return Verdict.RUN_AGAIN_COUNTED
    return Verdict.GIVE_UP


def pause_seconds(num_transient_retries: int) -> float:
    """How long a lane waits before it gives a closure back, in seconds.

    Doubles from 0.1 s to at most 2 s: five retries span three seconds, so a
    connection has time to come back.
    """
    return float(min(2.0, 0.1 * 2.0**num_transient_retries))


def rest_seconds(num_failures: int) -> float:
    """How long a lane leaves closures to others after failures in a row.

    A worker that does not reach a parameter server fails whatever it takes,
    and faster than others succeed. Nothing after the first, then doubling from
    1 s to at most 30 s.

    Args:
        num_failures: Of the lane, without a success in between, while every
            task was well.
    """
    if num_failures < 2:
        return 0.0
    return float(min(30.0, 2.0 ** min(5, num_failures - 2)))

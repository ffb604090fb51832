"""Tests of the classification of failures; texts are TensorFlow's own."""

import pytest

from tfps_plugin.coordinator.members import failures
from tfps_plugin.coordinator.members.failures import Failure
from tfps_plugin.coordinator.members.failures import FailureKind
from tfps_plugin.coordinator.members.failures import Verdict

_REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: "
    "ipv4:127.0.0.1:40023: Failed to connect to remote host: Connection "
    "refused\nAdditional GRPC error information from remote target {target} "
    "while calling /tensorflow.eager.EagerService/Enqueue:\n:UNKNOWN:Error "
    "received from peer"
)
_NO_CONTEXT = (
    "Unable to find a context_id matching the specified one "
    "(8654931672570953561). Perhaps the worker was restarted, or the context "
    "was GC'd?\nAdditional GRPC error information from remote target {target} "
    "while calling /tensorflow.eager.EagerService/Enqueue:"
)
_WORKER_1 = "/job:worker/replica:0/task:1"
_PS_1 = "/job:ps/replica:0/task:1/device:CPU:0"


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("UnavailableError", _REFUSED.format(target=_WORKER_1)),
        ("AbortedError", _NO_CONTEXT.format(target=_WORKER_1)),
        (
            "InvalidArgumentError",
            "/job:worker/replica:0/task:1/device:CPU:0 unknown device.",
        ),
        (
            "InternalError",
            "No worker known as /job:worker/replica:0/task:1",
        ),
    ],
)
def test_a_dead_worker(type_name: str, text: str) -> None:
    assert failures.classify(type_name, text, 1) == Failure(
        FailureKind.SUSPECT_WORKER, workers=(1,)
    )


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("UnavailableError", _REFUSED.format(target=_PS_1)),
        ("AbortedError", _NO_CONTEXT.format(target=_PS_1)),
        (
            "InvalidArgumentError",
            "Graph execution error:\n\nUnable to find the relevant tensor "
            "remote_handle: Op ID: 5, Output num: 0.\nAdditional GRPC error "
            "information from remote target /job:ps/replica:0/task:1/"
            "device:CPU:0 while calling /tensorflow.eager.EagerService/"
            "RunComponentFunction:",
        ),
        (
            "InvalidArgumentError",
            "Failed copying input tensor from /job:ps/replica:0/task:1/"
            "device:CPU:0 to /job:worker/replica:0/task:0/device:CPU:0 in "
            "order to run AssignVariableOp: Client for target /job:ps/"
            "replica:0/task:1 not found. [Op:AssignVariableOp] name: ",
        ),
    ],
)
def test_a_dead_ps_reported_by_a_worker(type_name: str, text: str) -> None:
    assert failures.classify(type_name, text, 0) == Failure(
        FailureKind.SUSPECT_PS, workers=(0,), ps=(1,)
    )


def test_worker_that_ran_it_is_asked_too() -> None:
    text = _REFUSED.format(target=_WORKER_1)
    assert failures.classify("UnavailableError", text, 0).workers == (1, 0)


def test_target_counts_more_than_bystanders() -> None:
    text = "on /job:ps/replica:0/task:7: " + _REFUSED.format(target=_WORKER_1)
    assert failures.classify("UnavailableError", text, 1) == Failure(
        FailureKind.SUSPECT_WORKER, workers=(1,)
    )


def test_tasks_of_two_digits() -> None:
    text = _REFUSED.format(target="/job:ps/replica:0/task:12")
    assert failures.classify("UnavailableError", text, 34) == Failure(
        FailureKind.SUSPECT_PS, workers=(34,), ps=(12,)
    )


def test_unnamed_task_is_the_one_dispatched_to() -> None:
    assert failures.classify("UnavailableError", "Socket closed", 3) == (
        Failure(FailureKind.SUSPECT_WORKER, workers=(3,))
    )


def test_stale_resource() -> None:
    text = (
        "Resource input tensor contains an invalid device. This might happen "
        "when the client has connected to a different cluster, or some remote "
        "workers have been restarted."
    )
    assert failures.classify("InvalidArgumentError", text, 2) == Failure(
        FailureKind.TRANSIENT, workers=(2,)
    )


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("DeadlineExceededError", "Deadline Exceeded"),
        ("UnknownError", "Stream removed"),
    ],
)
def test_transient(type_name: str, text: str) -> None:
    failure = failures.classify(type_name, text, 0)
    assert failure == Failure(FailureKind.TRANSIENT, workers=(0,))


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("ValueError", "Unable to find a context_id matching"),
        ("ZeroDivisionError", "division by zero"),
        ("OutOfRangeError", "End of sequence"),
        ("CancelledError", "the user's own queue was closed"),
        ("FailedPreconditionError", "Table not initialized."),
        (
            "InvalidArgumentError",
            "Graph execution error:\n\nassertion failed: [loss is NaN]\n"
            "Additional GRPC error information from remote target "
            "/job:worker/replica:0/task:1 while calling "
            "/tensorflow.eager.EagerService/Enqueue:",
        ),
    ],
)
def test_the_users_own(type_name: str, text: str) -> None:
    assert failures.classify(type_name, text, 1).kind is FailureKind.USER


def test_cancelled_by_the_runtime_is_not_the_users_own() -> None:
    text = "Operation was cancelled on /job:worker/replica:0/task:0"
    failure = failures.classify("CancelledError", text, 0)
    assert failure.kind is FailureKind.SUSPECT_WORKER


@pytest.mark.parametrize("kind", list(FailureKind))
@pytest.mark.parametrize("worker_is_lost", [False, True])
@pytest.mark.parametrize("num_retries", [0, 4, 5])
def test_verdicts(
    kind: FailureKind, worker_is_lost: bool, num_retries: int
) -> None:
    verdict = failures.judge(
        kind,
        worker_is_lost=worker_is_lost,
        num_transient_retries=num_retries,
        max_transient_retries=5,
    )
    if kind is FailureKind.USER:
        assert verdict is Verdict.RAISE
    elif worker_is_lost:
        assert verdict is Verdict.RUN_AGAIN
    elif num_retries < 5:
        assert verdict is Verdict.RUN_AGAIN_COUNTED
    else:
        assert verdict is Verdict.GIVE_UP


def test_pauses_grow_and_are_bounded() -> None:
    pauses = [failures.pause_seconds(number) for number in range(40)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.1
    assert pauses[-1] == 2.0
    assert sum(pauses[:5]) > 3.0


def test_who_fails_again_and_again_leaves_closures_to_others() -> None:
    rests = [failures.rest_seconds(number) for number in range(2000)]
    assert rests[:5] == [0.0, 0.0, 1.0, 2.0, 4.0]
    assert rests == sorted(rests)
    assert rests[-1] == 30.0


@pytest.mark.parametrize(
    ("text", "worker", "ps"),
    [
        ("remote target /job:worker/replica:0/task:0 Cleanup 23", 0, None),
        ("Cleanup 2393", 4, None),
        ("Cleanup -540195374324684506", 4, None),
        ("remote target /job:ps/replica:0/task:1 Cleanup 23", None, 1),
        (
            "from /job:ps/replica:0/task:1 to /job:worker/replica:0/task:2: "
            "Cleanup 23",
            2,
            None,
        ),
        ("No worker known as /job:ps/replica:0/task:0", 4, None),
        (
            "Could not find function library for registered component "
            "function: f remote target /job:ps/replica:0/task:0",
            4,
            None,
        ),
        (
            "'__inference_f_7' is neither a type of a primitive operation nor "
            "a name of a function remote target /job:worker/replica:0/task:0",
            0,
            None,
        ),
        ("remote target /job:worker/replica:0/task:0: reset", None, None),
    ],
)
def test_who_lives_and_is_of_no_use_is_named(
    text: str, worker: int | None, ps: int | None
) -> None:
    failure = failures.classify("AbortedError", text, 4)
    assert (failure.broken_worker, failure.broken_ps) == (worker, ps)

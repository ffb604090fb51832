"""Asks a task's own server whether it lives, and who it is.

Every TensorFlow server answers `GetStatus` of its worker service within a
millisecond, whatever its threads compute. TensorFlow itself is not needed to
ask.
"""

import dataclasses
import itertools
import logging
import re
import threading
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

import grpc
from google.protobuf import descriptor_pb2
from google.protobuf import descriptor_pool
from google.protobuf import message
from google.protobuf import message_factory

from tfps_plugin import errors
from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.quorum import Quorum
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

_METHOD = "/tensorflow.WorkerService/GetStatus"
_CHANNEL_OPTIONS = (
    # Tasks are reached directly, as by TensorFlow's own connections.
    ("grpc.enable_http_proxy", 0),
    # A shared connection would remember failures, and report a task as dead
    # for some seconds after it has come back.
    ("grpc.use_local_subchannel_pool", 1),
)
_WHERE = re.compile(
    r"^(UNKNOWN: )?(ipv[46]:\S+: )?(Failed to connect to remote host: )?"
)
_PROBE_TIMEOUT_SECONDS = 2.0
_PROBE_INTERVAL_SECONDS = 0.25
# The log reports a wait after this time, and then at intervals that double.
_PROGRESS_INTERVAL_SECONDS = 5.0
_LONGEST_PROGRESS_INTERVAL_SECONDS = 60.0
# Number of tasks that a line of the log names.
_MOST_NAMED = 4


@dataclasses.dataclass(frozen=True)
class TaskStatus:
    """Status of a task, as its server reports it.

    Attributes:
        device_names: Full names of its devices.
        incarnation: A random number, drawn when the task's process started:
            another number means another process, with none of the old state.
    """

    device_names: tuple[str, ...]
    incarnation: int

    @property
    def task_name(self) -> str:
        """Name of the task in TensorFlow: `/job:ps/replica:0/task:0`."""
        return self.device_names[0].partition("/device:")[0]

    @property
    def gpu_names(self) -> tuple[str, ...]:
        """Full names of its GPUs."""
        return tuple(name for name in self.device_names if "device:GPU" in name)


def probe(address: str, timeout_seconds: float) -> TaskStatus:
    """Asks the task at an address for its status.

    Args:
        address: `"host:port"`.
        timeout_seconds: How long to wait for an answer.

    Returns:
        Its status.

    Raises:
        TaskUnreachableError: If no TensorFlow server answers there in time.

    Threading: safe from several threads.
    """
    # The request has no fields.
    answer = call(address, _METHOD, b"", timeout_seconds)
    try:
        return _parse(answer)
    except (message.DecodeError, IndexError) as error:
        reason = "what answers there is not a TensorFlow task"
        raise _unreachable(address, reason) from error


def call(
    address: str, method: str, request: bytes, timeout_seconds: float
) -> bytes:
    """Calls a method of a task's own server.

    Args:
        address: `"host:port"`.
        method: Full name of the method.
        request: The serialized request.
        timeout_seconds: How long to wait for an answer.

    Returns:
        The serialized answer.

    Raises:
        TaskUnreachableError: If no TensorFlow server answers there in time.

    Threading: safe from several threads.
    """
    try:
        with grpc.insecure_channel(address, _CHANNEL_OPTIONS) as channel:
            # Without serializers: passes bytes.
            answer: bytes = channel.unary_unary(method)(
                request, timeout=timeout_seconds
            )
            return answer
    except grpc.RpcError as error:
        raise _unreachable(address, _reason(error, timeout_seconds)) from error


def probe_all(
    tasks: Iterable[Task], timeout_seconds: float
) -> dict[Task, TaskStatus | errors.TaskUnreachableError]:
    """Probes several tasks at the same time.

    A task that answers under another name counts as unreachable.

    Args:
        tasks: The tasks to ask.
        timeout_seconds: How long to wait for each.

    Returns:
        For each task its status or the error.
    """
    outcomes = bounded_calls.call_all(
        lambda task: probe_task(task, timeout_seconds),
        tasks,
        # The margin lets the probes themselves report why they failed.
        timeout_seconds + 1.0,
    )
    answers: dict[Task, TaskStatus | errors.TaskUnreachableError] = {}
    for task, outcome in outcomes.items():
        if outcome.value is not None:
            answers[task] = outcome.value
        elif isinstance(outcome.error, errors.TaskUnreachableError):
            answers[task] = outcome.error
        else:
            answers[task] = _unreachable(task.address, str(outcome.error))
    return answers


def names_at(
    addresses: Iterable[str], timeout_seconds: float
) -> dict[str, str]:
    """Asks the processes at some addresses which tasks they are.

    Args:
        addresses: The addresses, `"host:port"`.
        timeout_seconds: How long to wait for the answers.

    Returns:
        The name in TensorFlow of each that answers.
    """
    outcomes = bounded_calls.call_all(
        lambda address: probe(address, timeout_seconds).task_name,
        addresses,
        # As in `probe_all`.
        timeout_seconds + 1.0,
    )
    return {
        address: outcome.value
        for address, outcome in outcomes.items()
        if outcome.value is not None
    }


def silent_tasks(tasks: Iterable[Task], timeout_seconds: float) -> list[Task]:
    """Returns the tasks that do not say anything at all.

    Args:
        tasks: The tasks to ask, all at the same time.
        timeout_seconds: How long to wait for each.

    Returns:
        Those without an answer. A connection that is refused is an answer.
    """
    return [
        task
        for task, answer in probe_all(tasks, timeout_seconds).items()
        if isinstance(answer, errors.TaskUnreachableError)
        and answer.reason == _no_answer(timeout_seconds)
    ]


def probe_task(task: Task, timeout_seconds: float) -> TaskStatus:
    """Probes a task, and verifies that no other task answers.

    Raises:
        WrongTaskError: If another task answers at its address.
        TaskUnreachableError: If no task answers.
    """
    status = probe(task.address, timeout_seconds)
    if status.task_name != task.name:
        raise WrongTaskError(
            f"At {task.address}, {task} was expected, but the task there "
            f"calls itself {status.task_name}. Received: "
            f"address={task.address!r}. Give all tasks the same cluster, and "
            "each its own type and index.",
            address=task.address,
            reason=f"the task there is {status.task_name}",
        )
    return status


class WrongTaskError(
    errors.TaskUnreachableError, errors.ClusterConfigurationError
):
    """Error for an unexpected task that answers at an address."""


class _ProgressLog:
    """The lines of the log about a wait, at intervals that double."""

    def __init__(self, start: float) -> None:
        """Begins with the wait."""
        self._start = start
        self._interval = _PROGRESS_INTERVAL_SECONDS
        self._next = start + self._interval

    def report(
        self,
        now: float,
        num_ready: int,
        reasons: Mapping[Task, str],
        on_log: Callable[[], None],
    ) -> None:
        """Logs what is missing, if it is time."""
        if now < self._next:
            return
        self._interval = min(
            2 * self._interval, _LONGEST_PROGRESS_INTERVAL_SECONDS
        )
        self._next = now + self._interval
        on_log()
        # A warning is visible even if logging is not configured.
        _logger.warning(
            "%d of %d tasks answer after %.0f s; waiting for %s.",
            num_ready,
            num_ready + len(reasons),
            now - self._start,
            _brief(reasons),
        )


def wait_until_ready(
    tasks: Iterable[Task],
    timeout_seconds: float,
    *,
    check: Callable[[], None] = lambda: None,
    on_round: Callable[[int, float], None] = lambda num_ready, seconds: None,
    on_log: Callable[[], None] = lambda: None,
    stop: threading.Event | None = None,
    quorum: Quorum | None = None,
) -> dict[Task, TaskStatus]:
    """Waits until every task answers, or enough of them do.

    After some seconds, and again at growing intervals, the logger
    `tfps_plugin.cluster` names the missing tasks and why they do not answer
    yet. It also names the tasks that the job starts without.

    Args:
        tasks: The tasks to wait for.
        timeout_seconds: How long to wait for all of them together.
        check: Called between rounds; may raise to end the wait.
        on_round: Called after every round, with the number of tasks that
            answer so far and the seconds since the beginning.
        on_log: Called before something is logged.
        stop: Setting it ends the wait as if the time were up.
        quorum: Decides which tasks are enough; None: only all of them.

    Returns:
        The status of each task that answers.

    Raises:
        ClusterStartTimeoutError: If the time is up. It lists each task that
            does not answer, its address and the last reason.
        ClusterConfigurationError: As soon as a task answers under another
            name than the cluster gives it.
    """
    stop = stop or threading.Event()
    start = time.monotonic()
    deadline = start + timeout_seconds
    progress = _ProgressLog(start)
    order = tuple(tasks)
    quorum = quorum or Quorum(order, None)
    ready: dict[Task, TaskStatus] = {}
    reasons: dict[Task, str] = dict.fromkeys(order, "it was not asked yet")
    while reasons:
        left_seconds = max(0.1, deadline - time.monotonic())
        answers = probe_all(
            tuple(reasons), min(_PROBE_TIMEOUT_SECONDS, left_seconds)
        )
        for task, answer in answers.items():
            if isinstance(answer, WrongTaskError):
                raise answer
            if isinstance(answer, errors.TaskUnreachableError):
                reasons[task] = answer.reason
            else:
                ready[task] = answer
                del reasons[task]
        on_round(len(ready), time.monotonic() - start)
        if quorum.is_met(ready):
            break
        check()
        now = time.monotonic()
        if now >= deadline or stop.is_set():
            raise errors.ClusterStartTimeoutError(
                _timeout_text(reasons, len(order), quorum, timeout_seconds)
            )
        progress.report(now, len(ready), reasons, on_log)
        stop.wait(min(_PROBE_INTERVAL_SECONDS, deadline - now))
    if reasons:
        on_log()
        _logger.warning(
            "Starting with %d of %d tasks; expected %s. Missing, and taken in "
            "when they answer: %s.",
            len(ready),
            len(order),
            quorum,
            "; ".join(_lines(reasons)),
        )
    return {task: ready[task] for task in order if task in ready}


def _timeout_text(
    reasons: Mapping[Task, str],
    num_tasks: int,
    quorum: Quorum,
    timeout_seconds: float,
) -> str:
    return (
        f"{len(reasons)} of {num_tasks} tasks did not answer within "
        f"{timeout_seconds:g} s; expected {quorum}. Received:"
        f"{_list(reasons)}\n"
        "What to do: (1) see in its log whether each of these tasks runs and "
        "which address it serves; (2) compare the addresses with the "
        "cluster in TF_CONFIG; (3) see that this machine may connect to "
        "these ports; (4) if they only need longer to start, allow more "
        "time: timeout_seconds of tfps.StartupOptions; (5) if some workers may "
        "come later, start without them: min_workers of tfps.StartupOptions."
    )


def _brief(reasons: Mapping[Task, str]) -> str:
    """Returns the first of the tasks and their reasons, in one line."""
    named = list(itertools.islice(_lines(reasons), _MOST_NAMED))
    if len(reasons) > _MOST_NAMED:
        named.append(f"and {len(reasons) - _MOST_NAMED} more")
    return "; ".join(named)


def _list(reasons: Mapping[Task, str]) -> str:
    return "".join(f"\n  {line}" for line in _lines(reasons))


def _lines(reasons: Mapping[Task, str]) -> Iterator[str]:
    for task, reason in reasons.items():
        yield f"{task} at {task.address}: {reason}"


def _unreachable(address: str, reason: str) -> errors.TaskUnreachableError:
    return errors.TaskUnreachableError(
        f"The task at {address} does not answer: {reason}",
        address=address,
        reason=reason,
    )


def _reason(error: grpc.RpcError, timeout_seconds: float) -> str:
    """Returns the reason why a call failed, in a few words."""
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return _no_answer(timeout_seconds)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "what answers there is not a TensorFlow task"
    details = str(error.details() or code.name)
    # gRPC wraps the cause: "failed to connect to all addresses; last error:
    # UNKNOWN: ipv4:127.0.0.1:1: Failed to connect ...: Connection refused".
    cause = details.rpartition("last error: ")[2]
    return _WHERE.sub("", cause) or details


def _no_answer(timeout_seconds: float) -> str:
    return f"no answer within {timeout_seconds:.3g} s"


def _declare_messages() -> type[message.Message]:
    """Declares the part of TensorFlow's GetStatusResponse that is read here.

    TensorFlow ships Python code only for the inner message, and importing it
    would import all of TensorFlow.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="tfps_plugin/get_status.proto",
        package="tfps_plugin",
        syntax="proto3",
    )
    field = descriptor_pb2.FieldDescriptorProto
    device = file.message_type.add(name="DeviceAttributes")
    device.field.add(
        name="name",
        number=1,
        type=field.TYPE_STRING,
        label=field.LABEL_OPTIONAL,
    )
    device.field.add(
        name="incarnation",
        number=6,
        type=field.TYPE_FIXED64,
        label=field.LABEL_OPTIONAL,
    )
    file.message_type.add(name="GetStatusResponse").field.add(
        name="device_attributes",
        number=1,
        type=field.TYPE_MESSAGE,
        type_name=".tfps_plugin.DeviceAttributes",
        label=field.LABEL_REPEATED,
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    response = pool.FindMessageTypeByName("tfps_plugin.GetStatusResponse")
    return message_factory.GetMessageClass(response)


_GetStatusResponse = _declare_messages()


def _parse(answer: bytes) -> TaskStatus:
    """Parses an answer; raises DecodeError or IndexError if it is invalid."""
    response = _GetStatusResponse()
    response.ParseFromString(answer)
    devices = list(getattr(response, "device_attributes"))  # noqa: B009
    return TaskStatus(
        device_names=tuple(device.name for device in devices),
        incarnation=devices[0].incarnation,
    )

"""The process of a worker or parameter server.

    python -m tfps_plugin.cluster.serving.task_server

serves as the task that `TF_CONFIG` names. A job that starts the same program
for all tasks calls `tfps.init()` there instead.

TensorFlow's servers cannot be stopped, so the process ends with them: exit
handlers of the program do not run in a worker or ps.
"""

import argparse
import contextlib
import functools
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Collection
from types import FrameType
from typing import NoReturn

import tfps_plugin
from tfps_plugin import errors
from tfps_plugin.cluster import environment
from tfps_plugin.cluster import health
from tfps_plugin.cluster import spec
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.machine import server_threads
from tfps_plugin.cluster.machine import tuning
from tfps_plugin.cluster.machine import usable_cores
from tfps_plugin.cluster.output import json_lines
from tfps_plugin.cluster.output.json_lines import JsonHandler
from tfps_plugin.cluster.serving import chief_watch
from tfps_plugin.cluster.serving import messages
from tfps_plugin.cluster.serving.chief_watch import EXIT_NO_CHIEF
from tfps_plugin.cluster.serving.chief_watch import ChiefWatch
from tfps_plugin.cluster.serving.chief_watch import Ending
from tfps_plugin.monitoring.processes.reporter import Reporter

_logger = logging.getLogger("tfps_plugin.cluster")

# A cluster starts its tasks in any order, and the chief's machine may be the
# last that is free. An hour covers the start of new machines and the download
# of images; a forgotten task does not cost more than that.
CHIEF_START_TIMEOUT_SECONDS = 3600.0
# A chief that has crashed is started again within minutes. Until then the tasks
# keep their state.
CHIEF_GRACE_SECONDS = 600.0
# Kubernetes and Slurm send SIGKILL 30 s after SIGTERM.
DRAIN_SECONDS = 25.0
_PROBE_INTERVAL_SECONDS = 5.0
_PROBE_TIMEOUT_SECONDS = 2.0
# The time between the news that the job is over and the end: the chief's call
# returns before its connection breaks, so the chief sees no error. Nothing else
# depends on it.
_FAREWELL_SECONDS = 0.25
_LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_LOG_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"
_EXIT_INTERRUPTED = 128 + signal.SIGINT


def serve(
    config: spec.TaskConfig,
    *,
    chief_start_timeout_seconds: float = CHIEF_START_TIMEOUT_SECONDS,
    chief_grace_seconds: float = CHIEF_GRACE_SECONDS,
    tune: bool | None = None,
    cores: Collection[int] = (),
    logical_cpus: int = 1,
    drain_seconds: float = DRAIN_SECONDS,
    drained_exit_code: int = chief_watch.EXIT_TERMINATED,
) -> NoReturn:
    """Serves as a worker or parameter server, and ends the process.

    Exit codes: 0 when the chief ends the job; 69 when there was no chief for
    too long; 143 after SIGTERM, which job controllers understand as "was
    preempted, start it again"; 130 after Ctrl-C; 1 when it cannot serve.

    After SIGTERM a worker asks its chief to let it go: it ends what it runs,
    so that nothing is lost or runs twice. A parameter server, a worker without
    a chief, and any task after a second SIGTERM, end at once.

    Args:
        config: The task and its cluster.
        chief_start_timeout_seconds: The time to wait for the chief to connect.
        chief_grace_seconds: The time to wait for a chief that has stopped
            answering, or for a new one in its place. The task keeps its state
            meanwhile.
        tune: Whether to tune the machine for this task
            (docs/tuning_the_machine.md). None: if the environment has
            `TFPS_TUNE=1`.
        cores: The cores that a tuned task keeps to; none: any.
        logical_cpus: Number of CPU devices of a worker. Without accelerators,
            it has a replica on each; they share its cores.
        drain_seconds: The time that a worker has after SIGTERM to end what it
            runs; less than whoever sends SIGTERM waits before SIGKILL.
        drained_exit_code: Exit code of a worker that has ended it.

    Raises:
        ClusterConfigurationError: If the task is neither worker nor ps.
        TaskStartError: If the task's address cannot be served.

    Threading: call it on the main thread, so that it obeys SIGTERM.
    """
    if config.job not in (spec.WORKER, spec.PARAMETER_SERVER):
        raise errors.ClusterConfigurationError(
            "Only workers and parameter servers serve. Received: "
            f"task.type={config.job!r}. Run your program as this task."
        )
    _log_visibly()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    is_drained = config.job == spec.WORKER and drain_seconds > 0
    os.environ.update(
        environment.with_settings(
            os.environ, (task.host for task in config.cluster.tasks)
        )
    )
    if tune is None:
        tune = tuning.is_on(os.environ)
    try:
        inbox = _start(
            config, tune=tune, cores=cores, logical_cpus=logical_cpus
        )
        watch = ChiefWatch(
            time.monotonic(),
            chief_start_timeout_seconds=chief_start_timeout_seconds,
            chief_grace_seconds=chief_grace_seconds,
        )
        if is_drained and (
            threading.current_thread() is threading.main_thread()
        ):
            signal.signal(
                signal.SIGTERM,
                functools.partial(_terminate_later, inbox, watch),
            )
        ending = _wait_for_end(
            config, inbox, watch, drain_seconds, drained_exit_code
        )
    except KeyboardInterrupt:
        ending = Ending(_EXIT_INTERRUPTED, "interrupted")
    _logger.log(
        logging.ERROR if ending.exit_code else logging.INFO,
        "%s %d ends: %s.",
        config.job,
        config.index,
        ending.reason,
    )
    _end_process(ending.exit_code)


def _log_visibly() -> None:
    """Shows this task's log, unless the program has configured logging.

    From here on the process does nothing but serve, so its log is ours.
    """
    _configure_root()
    package = logging.getLogger(tfps_plugin.__name__)
    if package.level == logging.NOTSET:
        package.setLevel(logging.INFO)


def _configure_root(level: int | None = None) -> None:
    """Configures `logging`, unless the program has done so."""
    if json_lines.is_json(os.environ):
        logging.basicConfig(level=level, handlers=[JsonHandler()])
    else:
        logging.basicConfig(
            level=level, format=_LOG_FORMAT, datefmt=_LOG_TIME_FORMAT
        )


class _Terminate:
    """SIGTERM has arrived."""


# From the mailbox's thread: messages, or the error that has ended it; from the
# handler of signals.
_Inbox = queue.SimpleQueue[messages.Message | BaseException | _Terminate]


def _start(
    config: spec.TaskConfig,
    *,
    tune: bool = False,
    cores: Collection[int] = (),
    logical_cpus: int = 1,
) -> _Inbox:
    """Starts to serve, with the machine tuned if asked; returns the inbox."""
    task = config.task
    # TensorFlow would find out, too, but later.
    reason = ports.why_unusable(spec.split_address(task.address)[1], os.environ)
    if reason is not None:
        raise _port_error(task, reason)
    threads = server_threads.server_threads(
        config, usable_cores.usable_cores(), os.environ
    )
    with (
        # The server's threads inherit it. The main thread, and processes that
        # it starts, do not.
        tuning.applied(task.job, cores, os.environ)
        if tune
        else contextlib.nullcontext()
    ):
        inbox = _start_server(config, threads, logical_cpus)
    _logger.info("%s serves at %s.", task, task.address)
    return inbox


def _start_server(
    config: spec.TaskConfig,
    threads: server_threads.ServerThreads,
    logical_cpus: int,
) -> _Inbox:
    """Starts the server, and threads for its mailbox and its reports."""
    # Imported only here, because it may take seconds. Before that, the process
    # already obeys signals and the end of the process that has started it.
    from tfps_plugin._compat.runtime import tensorflow_server
    from tfps_plugin.cluster.serving.mailbox import Mailbox
    from tfps_plugin.cluster.serving.report_board import ReportBoard

    task = config.task
    if task.job == spec.PARAMETER_SERVER:
        from tfps_plugin.cluster.mapped_memory import tensor_memory
        from tfps_plugin.cluster.mapped_memory.disk_functions import (
            DiskFunctions,
        )

        tensor_memory.take_from_c_library(os.environ)
        tensorflow_server.serve_functions(DiskFunctions().by_name())
    session_config = tensorflow_server.ConfigProto(
        inter_op_parallelism_threads=threads.inter_op,
        intra_op_parallelism_threads=threads.intra_op,
    )
    # A thread that waits by spinning takes time from the other tasks of its
    # machine; on machines of their own, waking it costs some microseconds.
    session_config.experimental.disable_thread_spinning = True
    if task.job == spec.WORKER:
        # Replicas of a worker, on a machine without accelerators.
        session_config.device_count["CPU"] = logical_cpus
    if task.job == spec.PARAMETER_SERVER:
        # Variables are in main memory. A GPU of the same machine belongs to
        # the workers; TensorFlow would take all of its memory.
        session_config.device_count["GPU"] = 0
    try:
        server = tensorflow_server.Server(
            tensorflow_server.ClusterSpec(config.cluster.as_dict()),
            job_name=task.job,
            task_index=task.index,
            protocol="grpc",
            config=session_config,
        )
    except tensorflow_server.OpError as error:
        raise _port_error(task, error.message) from error
    mailbox = Mailbox(server.target, task)
    inbox: _Inbox = queue.SimpleQueue()

    def listen() -> None:
        try:
            while True:
                inbox.put(messages.decode(mailbox.receive()))
        except BaseException as error:
            inbox.put(error)

    threading.Thread(target=listen, name="tfps-mailbox", daemon=True).start()
    # Only a worker has a share of time in which it computes steps.
    Reporter(
        ReportBoard(server.target, task).write,
        measures_busy_share=task.job == spec.WORKER,
    ).start()
    return inbox


def _port_error(task: spec.Task, reason: str) -> errors.TaskStartError:
    port = spec.split_address(task.address)[1]
    return errors.TaskStartError(
        f"{task} cannot serve at its address. Expected a free port of this "
        f"machine. Received: address={task.address!r}: {reason}. See that no "
        f"other process uses the port (`ss -ltnp 'sport = :{port}'` names "
        "it; a task of an earlier job may still run), and that the address "
        "in TF_CONFIG is this task's own."
    )


def _wait_for_end(
    config: spec.TaskConfig,
    inbox: _Inbox,
    watch: ChiefWatch,
    drain_seconds: float = DRAIN_SECONDS,
    drained_exit_code: int = chief_watch.EXIT_TERMINATED,
) -> Ending:
    while True:
        waited_seconds = watch.reminder(time.monotonic())
        if waited_seconds is not None:
            _logger.warning(
                "%s.",
                chief_watch.no_chief_text(
                    config,
                    waited_seconds,
                    watch.seconds_left(time.monotonic()),
                ),
            )
        left_seconds = watch.seconds_left(time.monotonic())
        try:
            message = inbox.get(
                timeout=min(_PROBE_INTERVAL_SECONDS, left_seconds)
            )
        except queue.Empty:
            if watch.chief is not None:
                news = watch.probed(_answers(watch.chief), time.monotonic())
                if news:
                    _logger.warning("%s.", news)
            ending = watch.check(time.monotonic())
        else:
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, _Terminate):
                _ask_to_leave(config, watch.chief, drain_seconds)
                watch.told_to_end(
                    time.monotonic(), drain_seconds, drained_exit_code
                )
                continue
            ending = watch.heard(message, time.monotonic())
            if isinstance(message, messages.ChiefHere):
                _logger.info("The chief at %s has connected.", message.address)
        if ending is not None:
            if not ending.exit_code:
                threading.Event().wait(_FAREWELL_SECONDS)
            return ending


def _answers(chief: messages.ChiefHere) -> bool:
    try:
        status = health.probe(chief.address, _PROBE_TIMEOUT_SECONDS)
    except errors.TaskUnreachableError:
        return False
    return status.incarnation == chief.incarnation


def _ask_to_leave(
    config: spec.TaskConfig,
    chief: messages.ChiefHere | None,
    drain_seconds: float,
) -> None:
    """Asks the chief to let this worker go; ends it if the chief is away."""
    from tfps_plugin.cluster.serving import mailbox

    if chief is None:
        _terminate(signal.SIGTERM, None)
    _logger.info(
        "%s is told to end (SIGTERM). It ends what it runs, and itself within "
        "%.0f s.",
        config.task,
        drain_seconds,
    )
    text = messages.encode(
        messages.Leaving(chief.chief_id, config.index, drain_seconds)
    )
    try:
        # A probe finds a chief that is gone in a millisecond.
        health.probe(chief.address, _PROBE_TIMEOUT_SECONDS)
        mailbox.post(
            spec.Task(spec.CHIEF, 0, chief.address),
            text,
            _PROBE_TIMEOUT_SECONDS,
        )
    except errors.TaskUnreachableError as error:
        _logger.warning("The chief cannot be asked: %s", error)
        _terminate(signal.SIGTERM, None)


def _terminate_later(
    inbox: _Inbox, watch: ChiefWatch, number: int, frame: FrameType | None
) -> None:
    """Handles SIGTERM: the main loop goes on, and asks the chief."""
    if watch.chief is None or watch.was_told_to_end:
        _terminate(number, frame)
    # The queue is made for handlers of signals: it needs no lock.
    inbox.put(_Terminate())


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    # The main thread may have held any lock: no logging here.
    os.write(2, b"tfps_plugin: terminated by SIGTERM.\n")
    os._exit(chief_watch.EXIT_TERMINATED)


def _end_process(exit_code: int) -> NoReturn:
    """Ends the process but not TensorFlow's server, whose end may hang."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(exit_code)


def _end_with_parent(pipe: int) -> None:
    """Ends this process when the other end of a pipe is closed.

    The process that has started this one holds the other end. The system closes
    it, however that process ends.
    """

    def wait() -> None:
        # Nobody ever writes, so reading returns only at the end.
        os.read(pipe, 1)
        os.write(2, b"tfps_plugin: the process that began this is gone.\n")
        os._exit(EXIT_NO_CHIEF)

    threading.Thread(target=wait, name="tfps-parent", daemon=True).start()


def main(arguments: list[str] | None = None) -> NoReturn:
    """Serves as the task that `TF_CONFIG` names, until the job is over."""
    parser = argparse.ArgumentParser(
        prog="python -m tfps_plugin.cluster.serving.task_server",
        description="Serves as the worker or ps that TF_CONFIG names.",
    )
    parser.add_argument(
        "--chief-start-timeout-seconds",
        type=float,
        default=CHIEF_START_TIMEOUT_SECONDS,
        help="the time to wait for the chief to connect",
    )
    parser.add_argument(
        "--chief-grace-seconds",
        type=float,
        default=CHIEF_GRACE_SECONDS,
        help="the time to wait for a chief that has died",
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=DRAIN_SECONDS,
        help="the time that a worker has to end what it runs after SIGTERM",
    )
    parser.add_argument(
        "--drained-exit-code",
        type=int,
        default=chief_watch.EXIT_TERMINATED,
        help="exit code of a worker that has ended it",
    )
    parser.add_argument(
        "--parent-pipe",
        type=int,
        help="file descriptor of a pipe at whose end this process ends",
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        default=None,
        help="tune the machine for this task, as TFPS_TUNE=1 does",
    )
    parser.add_argument(
        "--cores",
        type=int,
        nargs="*",
        default=(),
        help="the cores that a tuned task keeps to",
    )
    parser.add_argument(
        "--logical-cpus",
        type=int,
        default=1,
        help="number of CPU devices of a worker",
    )
    options = parser.parse_args(arguments)
    if options.parent_pipe is not None:
        _end_with_parent(options.parent_pipe)
    _configure_root(logging.INFO)
    try:
        config = tf_config.read_tf_config()
        if config is None:
            raise errors.ClusterConfigurationError(
                "TF_CONFIG is not set. It has to name the cluster and the task "
                "that this process is."
            )
        serve(
            config,
            chief_start_timeout_seconds=options.chief_start_timeout_seconds,
            chief_grace_seconds=options.chief_grace_seconds,
            tune=options.tune,
            cores=options.cores,
            logical_cpus=options.logical_cpus,
            drain_seconds=options.drain_seconds,
            drained_exit_code=options.drained_exit_code,
        )
    except errors.TfpsError as error:
        _logger.error("%s", error)
        _end_process(1)


if __name__ == "__main__":
    main()

"""A cluster of real processes on this machine."""

import atexit
import contextlib
import dataclasses
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any
from typing import Self

import tfps_plugin
from tfps_plugin import errors
from tfps_plugin.cluster import environment
from tfps_plugin.cluster import health
from tfps_plugin.cluster import spec
from tfps_plugin.cluster import tf_config
from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.forking.forked_tasks import ForkedTask
from tfps_plugin.cluster.forking.forked_tasks import ForkedTasks
from tfps_plugin.cluster.machine import ports
from tfps_plugin.cluster.machine import tuning
from tfps_plugin.cluster.output import progress_line
from tfps_plugin.cluster.output import tensorflow_noise
from tfps_plugin.cluster.output.followed_logs import FollowedLogs
from tfps_plugin.cluster.output.progress_line import ProgressLine
from tfps_plugin.cluster.serving import task_server
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

_STOP_TIMEOUT_SECONDS = 5.0
# The system needs milliseconds, unless the machine is very busy.
_KILL_TIMEOUT_SECONDS = 60.0
# Length of the quoted end of the log of a task that dies before it serves.
_LOG_TAIL_CHARACTERS = 3000


class LocalCluster:
    """Workers and parameter servers as processes of this machine.

    It is for tests and first trials, and a strategy without a cluster uses one.
    They are forks of one process, the fork server, which has loaded TensorFlow.
    They end when the cluster is stopped, and at the latest when this process
    ends or dies.

        with tfps.LocalCluster(num_workers=2, num_ps=1) as cluster:
            strategy = tfps.ParameterServerStrategy(cluster.cluster_resolver)

    Args:
        num_workers: The number of workers.
        num_ps: The number of parameter servers.
        start_timeout_seconds: The time in which all tasks have to start.
        wait: Whether to wait until all tasks answer. If not, it returns when
            they are started; call `wait_until_ready`.
        environ: Environment variables of the tasks, added to those that this
            process has now. Tasks that are started again have the same.
        chief_start_timeout_seconds: The time for which a task waits for a
            chief.
        chief_grace_seconds: The time for which it waits for a chief that has
            died.
        show_output: Whether to show the output of tasks, such as `tf.print` in
            a step, on this process's standard error, each line with the task's
            name. Lines that TensorFlow logs at every start go to the logger
            `tfps_plugin.cluster` instead, at DEBUG. `log` has everything.
        tune: Whether to tune the machine for the tasks: cores, scheduling and
            memory (docs/tuning_the_machine.md). None: if the environment has
            `TFPS_TUNE=1`.
        logical_cpus_per_worker: The number of CPU devices that each worker
            has. Without accelerators, it has a replica on each; all share its
            cores.

    Raises:
        ClusterConfigurationError: If a number is less than one.
        TaskStartError: If a task ends before it answers; its log is quoted.
        ClusterStartTimeoutError: If a task does not answer in time.

    Guarantees: every method may be called from any thread.
    Guarded by `_lock`: `_processes`, `_tasks`, `_is_stopped`.
    Never call while holding the lock: anything that waits for a chief.
    """

    def __init__(
        self,
        num_workers: int = 2,
        num_ps: int = 1,
        *,
        start_timeout_seconds: float = 120.0,
        wait: bool = True,
        environ: Mapping[str, str] | None = None,
        chief_start_timeout_seconds: float = (
            task_server.CHIEF_START_TIMEOUT_SECONDS
        ),
        chief_grace_seconds: float = task_server.CHIEF_GRACE_SECONDS,
        show_output: bool = True,
        tune: bool | None = None,
        logical_cpus_per_worker: int = 1,
    ) -> None:
        for name, value in (
            ("num_workers", num_workers),
            ("num_ps", num_ps),
            ("logical_cpus_per_worker", logical_cpus_per_worker),
        ):
            if value < 1:
                raise errors.ClusterConfigurationError(
                    "A cluster needs at least one worker and one ps, and a "
                    f"worker at least one CPU. Received: {name}={value!r}"
                )
        self._start_timeout_seconds = start_timeout_seconds
        self._environ = dict(environ or {})
        if tune is None:
            tune = tuning.is_on({**os.environ, **self._environ})
        self._tune = tune
        self._options = (
            f"--chief-start-timeout-seconds={chief_start_timeout_seconds}",
            f"--chief-grace-seconds={chief_grace_seconds}",
            f"--logical-cpus={logical_cpus_per_worker}",
            "--drained-exit-code=0",
        )
        self._process_id = os.getpid()
        self._lock = threading.RLock()
        # By name of the task.
        self._processes: dict[str, ForkedTask] = {}
        self._is_stopped = False
        with contextlib.ExitStack() as stack:
            self._resources = stack
            reserved = [
                stack.enter_context(ports.reserved_port())
                for _ in range(num_workers + num_ps)
            ]
            addresses = [f"{ports.LOOPBACK}:{port}" for port in reserved]
            self._spec = ClusterSpec(
                worker_addresses=tuple(addresses[:num_workers]),
                ps_addresses=tuple(addresses[num_workers:]),
            )
            # Identify the cluster to sessions, even after tasks have moved or
            # were added.
            self._specs = [self._spec]
            self._folder = pathlib.Path(tempfile.mkdtemp(prefix="tfps-"))
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._logs: FollowedLogs | None = None
            if show_output:
                logs = self._logs = FollowedLogs(
                    {
                        str(task): self._log_path(task)
                        for task in self._spec.serving_tasks
                    },
                    self._log_level(),
                )
                # After the tasks have ended, and before their logs are gone.
                stack.callback(logs.close)
            self._tasks = self._new_tasks()
            stack.callback(lambda: self._tasks.close())
            stack.callback(self._end_processes)
            atexit.register(self.stop)
            stack.callback(atexit.unregister, self.stop)
            with ProgressLine() as line:
                # The first start lasts seconds: the fork server loads it.
                line.show(progress_line.loading_text(self._spec))
                for task in self._spec.serving_tasks:
                    self.start(task.job, task.index)
            if wait:
                self.wait_until_ready(start_timeout_seconds)
            # Everything has started. From here on, `stop` undoes it.
            self._resources = stack.pop_all()

    @property
    def cluster_spec(self) -> ClusterSpec:
        """Tasks of the cluster, without a chief, at their current addresses."""
        with self._lock:
            return self._spec

    @property
    def cluster_resolver(self) -> Any:
        """A `tf.distribute.cluster_resolver.ClusterResolver` of the cluster."""
        # The caller uses TensorFlow; the cluster itself does not.
        import tensorflow as tf

        cluster = self

        class Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):
            """A resolver that knows the current addresses of the tasks."""

            def cluster_spec(self) -> tf.train.ClusterSpec:
                return tf.train.ClusterSpec(cluster.cluster_spec.as_dict())

        return Resolver(
            tf.train.ClusterSpec(self.cluster_spec.as_dict()),
            task_type=spec.CHIEF,
            task_id=0,
            rpc_layer="grpc",
        )

    def start(
        self,
        job: str,
        index: int,
        *,
        wait: bool = False,
        new_address: bool = False,
    ) -> None:
        """Starts a task that has ended.

        Args:
            job: `"worker"` or `"ps"`.
            index: Its number within the job.
            wait: Whether to wait until it answers; see `wait_until_ready`.
            new_address: Whether it gets a new address, as when a cluster
                manager moves it to another machine.

        Raises:
            TaskStartError: If it still runs, or the cluster is stopped, or it
                ends before it answers.
            ClusterStartTimeoutError: If it does not answer in time.
        """
        with self._lock:
            task = self._spec.task(job, index)
            if self._is_stopped:
                raise errors.TaskStartError(
                    f"{task} cannot be started: the cluster is stopped. "
                    "Expected a LocalCluster before stop(), and before the end "
                    f"of its `with` block. Received: job={job!r}, index="
                    f"{index!r}. Make another LocalCluster."
                )
            process = self._processes.get(str(task))
            if process is not None and process.poll() is None:
                raise errors.TaskStartError(
                    f"{task} cannot be started: it still runs. Received: "
                    f"job={job!r}, index={index!r}. Call kill() first."
                )
            if new_address:
                task = self._move(task)
            self._processes[str(task)] = self._launch(task)
        if wait:
            self._wait_for([task], self._start_timeout_seconds)

    def add_worker(self, *, wait: bool = True) -> str:
        """Starts another worker, which no chief knows yet.

        Args:
            wait: Whether to wait until it answers; see `wait_until_ready`.

        Returns:
            Its address, for `ClusterCoordinator.add_worker`.

        Raises:
            TaskStartError: If the cluster is stopped, or the worker ends before
                it answers.
            ClusterStartTimeoutError: If it does not answer in time.
        """
        return self._add(spec.WORKER, wait=wait)

    def add_ps(self, *, wait: bool = True) -> str:
        """Starts another parameter server, which no chief knows yet.

        Args:
            wait: Whether to wait until it answers; see `wait_until_ready`.

        Returns:
            Its address, for `ClusterCoordinator.add_ps`.

        Raises:
            TaskStartError: If the cluster is stopped, or the parameter server
                ends before it answers.
            ClusterStartTimeoutError: If it does not answer in time.
        """
        return self._add(spec.PARAMETER_SERVER, wait=wait)

    def _add(self, job: str, *, wait: bool) -> str:
        with self._lock:
            port = self._resources.enter_context(ports.reserved_port())
            addresses = self._spec.as_dict()
            addresses[job].append(f"{ports.LOOPBACK}:{port}")
            self._set_spec(ClusterSpec.from_dict(addresses))
            task = self._spec.task(job, len(addresses[job]) - 1)
            if self._logs is not None:
                self._logs.add(str(task), self._log_path(task))
        self.start(task.job, task.index, wait=wait)
        return task.address

    def kill(self, job: str, index: int) -> None:
        """Kills a task with SIGKILL, and waits until it is gone.

        Args:
            job: Job of the task: "worker" or "ps".
            index: Index of the task in its job.

        Raises:
            subprocess.TimeoutExpired: If it is not gone after a minute.
        """
        process = self.process(job, index)
        process.kill()
        process.wait(_KILL_TIMEOUT_SECONDS)

    def process(self, job: str, index: int) -> ForkedTask:
        """Returns the process of a task: the last one, if it was restarted.

        Args:
            job: Job of the task: "worker" or "ps".
            index: Index of the task in its job.

        Returns:
            An object with the methods of `subprocess.Popen` that end a process
            or wait for its end, and with its `pid` and `returncode`.
        """
        with self._lock:
            return self._processes[str(self._spec.task(job, index))]

    def log(self, job: str, index: int) -> str:
        """Returns the output of a task so far, over all its restarts.

        Args:
            job: Job of the task: "worker" or "ps".
            index: Index of the task in its job.
        """
        path = self._log_path(self._spec.task(job, index))
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_until_ready(self, timeout_seconds: float = 120.0) -> None:
        """Waits until every task answers.

        Args:
            timeout_seconds: Longest time to wait.

        Raises:
            TaskStartError: If a task ends before it answers; its log is quoted.
            ClusterStartTimeoutError: If a task does not answer in time.
        """
        self._wait_for(list(self._spec.serving_tasks), timeout_seconds)

    def stop(self) -> None:
        """Ends the session with the cluster, if any, and all its tasks."""
        if os.getpid() != self._process_id:
            # A fork of this process ends; the tasks are not its own.
            return
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped = True
        for each in self._specs:
            this_process.close_session(each)
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _move(self, task: Task) -> Task:
        """Gives a task another address."""
        port = self._resources.enter_context(ports.reserved_port())
        moved = dataclasses.replace(task, address=f"{ports.LOOPBACK}:{port}")
        addresses = self._spec.as_dict()
        addresses[task.job][task.index] = moved.address
        self._set_spec(ClusterSpec.from_dict(addresses))
        return moved

    def _set_spec(self, cluster: ClusterSpec) -> None:
        self._spec = cluster
        self._specs.append(cluster)

    def _environment(self) -> dict[str, str]:
        """Returns the environment of the tasks."""
        # The tasks run the same code as this process, installed or not.
        path = str(pathlib.Path(tfps_plugin.__file__).parent.parent)
        before = os.environ.get("PYTHONPATH")
        environ = environment.with_settings(
            {
                # Several processes share the GPUs of one machine.
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
                **os.environ,
                **self._environ,
                tensorflow_noise.LOG_LEVEL: self._log_level(),
                "PYTHONPATH": f"{before}{os.pathsep}{path}" if before else path,
                # The port is held for the task by this process.
                "TF_GRPC_REUSE_PORT": "1",
            },
            (task.host for task in self._spec.tasks),
        )
        environ.update(tuning.task_variables(environ, tune=self._tune))
        return environ

    def _new_tasks(self) -> ForkedTasks:
        return ForkedTasks(
            self._environment(), self._folder / "fork_server.log"
        )

    def _launch(self, task: Task) -> ForkedTask:
        if self._tasks.is_over:
            # Somebody has killed the fork server, and all tasks with it.
            self._tasks.close()
            self._tasks = self._new_tasks()
        config = tf_config.to_tf_config(self._spec, task.job, task.index)
        return self._tasks.start(
            [
                *self._options,
                *tuning.task_arguments(self._spec, task, tune=self._tune),
            ],
            {"TF_CONFIG": config},
            self._log_path(task),
            self._start_timeout_seconds,
        )

    def _log_level(self) -> str:
        """Returns TensorFlow's log level: errors only by default."""
        return tensorflow_noise.choose_log_level(
            {**os.environ, **self._environ}, wants_everything=False
        )

    def _wait_for(self, tasks: list[Task], timeout_seconds: float) -> None:
        def check() -> None:
            for task in tasks:
                exit_code = self.process(task.job, task.index).poll()
                if exit_code is not None:
                    raise errors.TaskStartError(
                        f"{task} at {task.address} ended before it served. "
                        f"Received: exit code {exit_code}"
                        f"{_signal_name(exit_code)}. Its log ends:\n"
                        f"{self._log_tail(task)}"
                    )

        with ProgressLine() as line:
            health.wait_until_ready(
                tasks,
                timeout_seconds,
                check=check,
                on_log=line.close,
                on_round=lambda num_ready, seconds: line.show(
                    progress_line.text(
                        self.cluster_spec, num_ready, len(tasks), seconds
                    )
                ),
            )

    def _log_path(self, task: Task) -> pathlib.Path:
        return self._folder / f"{task.job}-{task.index}.log"

    def _log_tail(self, task: Task) -> str:
        return self.log(task.job, task.index)[-_LOG_TAIL_CHARACTERS:].strip()

    def _end_processes(self) -> None:
        with self._lock:
            processes = list(self._processes.values())
        for process in processes:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_KILL_TIMEOUT_SECONDS)


def embedded_cluster() -> LocalCluster:
    """Returns the cluster of a program that is given none.

    The first call starts it, and it stops when the program ends. All callers
    in this process share it.

    Returns:
        A running cluster of two workers and one parameter server.

    Threading: safe from several threads.
    """
    state = this_process.state
    with state.embedding:
        if state.embedded_cluster is None:
            # The chief computes on the same machine: by default TensorFlow
            # gives all memory of a GPU to the first process.
            os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
            _logger.info("No cluster is given: starting one on this machine.")
            state.embedded_cluster = LocalCluster()
        embedded: LocalCluster = state.embedded_cluster
        return embedded


def _signal_name(exit_code: int) -> str:
    return f" ({signal.Signals(-exit_code).name})" if exit_code < 0 else ""

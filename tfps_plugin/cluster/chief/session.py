"""The chief's connection to the tasks of its cluster."""

import atexit
import logging
import os
import threading
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin._compat.runtime import tensorflow_functions
from tfps_plugin.cluster import environment
from tfps_plugin.cluster import health
from tfps_plugin.cluster.chief import attachment
from tfps_plugin.cluster.chief import connection
from tfps_plugin.cluster.chief import connections
from tfps_plugin.cluster.chief import free_workers
from tfps_plugin.cluster.chief import leftovers
from tfps_plugin.cluster.chief import program_end
from tfps_plugin.cluster.chief import rejoining
from tfps_plugin.cluster.chief import runtime_view
from tfps_plugin.cluster.chief import this_process
from tfps_plugin.cluster.chief.address_book import AddressBook
from tfps_plugin.cluster.chief.announcer import Announcer
from tfps_plugin.cluster.chief.enrolment import Enrolment
from tfps_plugin.cluster.chief.runtime_view import RuntimeView
from tfps_plugin.cluster.health import TaskStatus
from tfps_plugin.cluster.output import progress_line
from tfps_plugin.cluster.output.progress_line import ProgressLine
from tfps_plugin.cluster.quorum import Quorum
from tfps_plugin.cluster.serving import inbox
from tfps_plugin.cluster.serving import messages
from tfps_plugin.cluster.spec import PARAMETER_SERVER
from tfps_plugin.cluster.spec import WORKER
from tfps_plugin.cluster.spec import ClusterSpec
from tfps_plugin.cluster.spec import Task

_logger = logging.getLogger("tfps_plugin.cluster")

_PROBE_TIMEOUT_SECONDS = 2.0
# Tasks that answer learn of functions within milliseconds.
_PREPARE_TIMEOUT_SECONDS = 10.0
# Tasks that are gone may not hold up the end of the job for long.
_DETACH_TIMEOUT_SECONDS = 2.0
_NO_INCARNATION = 0


class Session:
    """The chief's connection to its cluster; made by `Session.connect`.

    A process has at most one. When it ends, the job ends: every task is told
    so and ends as well.

    Attributes:
        requested: The cluster as the program described it.
        connection: Owns everything that is made on the cluster.
        missing_devices: Maps the devices of a worker that comes back to those
            that it lacks; with one missing, it is not taken in. The strategy
            sets it.

    Guarantees:
        Every method may be called from any thread. Changes of the membership
        happen one after the other, and never delay a method that only asks. A
        task that is listed but dead never blocks them: it is detected and
        taken out first. A task that hangs may; until the change that waits for
        it has ended, others fail with an error that names it. `close` happens
        once and returns within some seconds, whatever state the tasks are in.
    Guarded by `_change_lock`: every call that changes TensorFlow's view of
        the cluster. It may be held for seconds.
    Guarded by `_lock`, taken after it: `_statuses`, `_leaving`, `_is_closed`.
    Never call while holding `_lock`: anything that waits.
    """

    def __init__(
        self,
        requested: ClusterSpec,
        chief_address: str,
        statuses: dict[Task, TaskStatus],
        look_up: Callable[[], ClusterSpec] | None = None,
    ) -> None:
        self._enrolment = Enrolment(requested.with_chief(chief_address))
        self.connection = connection.begin()
        self.connection.cancellation = tensorflow_execution.Cancellation()
        self.requested = requested
        self._chief_address = chief_address
        self._announcer = Announcer(chief_address)
        self._book = AddressBook(
            requested,
            look_up,
            members=lambda: (*self.workers, *self.parameter_servers),
            ask=health.names_at,
        )
        self._view = RuntimeView(
            chief_address, requested.serving_tasks, self._book, statuses
        )
        self._process_id = os.getpid()
        self._change_lock = threading.Lock()
        self._lock = threading.Lock()
        self._statuses = dict(statuses)
        # Incarnations of tasks that were told to end.
        self._leaving: set[int] = set()
        self._is_closed = False
        self.missing_devices: Callable[[Sequence[str]], list[str]] = (
            lambda devices: []
        )

    @classmethod
    def connect(
        cls,
        cluster: ClusterSpec,
        *,
        timeout_seconds: float = 300.0,
        look_up: Callable[[], ClusterSpec] | None = None,
        min_workers: int | None = None,
    ) -> "Session":
        """Waits until the tasks answer, and connects this process as chief.

        Connecting to the same cluster again returns the same session; tasks
        that were replaced since are taken into it, with nothing on them.
        Connecting to another one closes the first, whose job is then over;
        tasks of both go on, and calls that they run for the first are
        cancelled. Variables, tables, datasets and functions that this process
        has made before, on its own devices, go on working there; its iterators
        do not.

        Args:
            cluster: The tasks; its chief's address is this process's own.
                Without one, it is derived.
            timeout_seconds: How long to wait for the tasks.
            look_up: Returns the present addresses, for tasks that come back at
                another one. None: addresses never change.
            min_workers: The number of workers to begin with. Those that do not
                answer by then are not listed; `readmit` takes them in. None:
                all. An existing session waits for no worker that does not
                answer, and for each of the others to run a function.

        Returns:
            The session.

        Raises:
            ClusterStartTimeoutError: If too few tasks answer in time; each
                that does not is listed with its address and the last reason.
                Or if workers that are connected to, and answer, run nothing
                but functions of an earlier strategy; they are listed, too.
            ClusterConfigurationError: If a task turns out to be another one.
            TaskStartError: If the chief cannot serve at its own address.
            TaskUnreachableError: If the chief's own server does not answer.
                The tasks then go on waiting for a chief.
        """
        state = this_process.state
        with state.connecting:
            current: Session | None = state.session
            if current is not None and current._serves(cluster):
                rejoining.rejoin(current, current._book, timeout_seconds)
                return current
            environment.apply_chief_environment(
                task.host for task in cluster.tasks
            )
            attachment.check_own_port(cluster)
            statuses = _wait_for_tasks(
                cluster.serving_tasks, timeout_seconds, min_workers
            )
            earlier = attachment.earlier_state(cluster)
            if current is not None:
                current._end(
                    serving_on=cluster.serving_tasks,
                    reason="superseded by a newer strategy, which has "
                    f"connected to {cluster.as_dict()!r}",
                )
            session = cls(
                cluster,
                attachment.attach(cluster, statuses, earlier),
                statuses,
                look_up,
            )
            try:
                session._begin()
            except BaseException:
                # As if it had never been: the tasks are told nothing.
                session._end(
                    serving_on=cluster.serving_tasks, reason="never connected"
                )
                raise
            state.session = session
            return session

    @classmethod
    def current(cls) -> "Session | None":
        """Returns this process's open session; None if there is none."""
        with this_process.state.connecting:
            session: Session | None = this_process.state.session
        if session is None or session._process_id != os.getpid():
            return None
        with session._lock:
            return None if session._is_closed else session

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster, with the address at which tasks reach the chief.

        It has all workers that it ever had, so that each keeps its index.
        """
        return self._enrolment.cluster

    @property
    def workers(self) -> tuple[Task, ...]:
        """The workers that belong to the cluster: without removed ones."""
        return self._enrolment.workers

    @property
    def parameter_servers(self) -> tuple[Task, ...]:
        """The ps that belong to the cluster: without removed ones."""
        return self._enrolment.parameter_servers

    def add_worker(self, address: str) -> Task:
        """Adds a worker to the cluster; `readmit` then takes it in.

        Args:
            address: Its address, `"host:port"`.

        Returns:
            The worker; its process has to serve under this index.

        Raises:
            ClusterConfigurationError: See `Enrolment.add`.
        """
        return self._enrolment.add(address)

    def add_ps(self, address: str) -> Task:
        """Adds a parameter server, which belongs to the cluster with `join_ps`.

        Until then, nobody waits for it if it is lost; `readmit` takes it in.

        Args:
            address: Its address, `"host:port"`.

        Returns:
            The parameter server.

        Raises:
            ClusterConfigurationError: See `Enrolment.add`.
        """
        return self._enrolment.add(address, PARAMETER_SERVER, joins=True)

    def join_ps(self, task: Task) -> None:
        """Makes a parameter server belong to the cluster."""
        self._enrolment.join(task)

    def note_leaving(self, task: Task) -> None:
        """Keeps a listed task, as it is now, from being taken in again.

        It is about to be delisted and told to end, but may answer for a while.

        Args:
            task: The task. Another process may serve in its place.
        """
        with self._lock:
            self._leaving.add(self._statuses[task].incarnation)

    def remove(self, task: Task) -> None:
        """Removes a worker or ps that was delisted, and tells it to end.

        Args:
            task: The task; nobody takes it in again, unless it is added.
        """
        self.retire(task)
        self.let_go(task)

    def retire(self, task: Task) -> None:
        """Removes a worker or ps, which goes on to serve until `let_go`.

        Args:
            task: The task.
        """
        self._enrolment.remove(task)

    def let_go(self, task: Task) -> None:
        """Tells a task that was delisted that it may end."""
        self._announcer.job_over([self._book.now(task)])

    def take_messages(self) -> list[messages.Message]:
        """Returns the messages that tasks have sent to this chief.

        Threading: one thread at a time.
        """
        chief_id = self._announcer.chief_id
        return [each for each in inbox.take() if each.chief_id == chief_id]

    def addresses_now(self) -> ClusterSpec:
        """Returns the cluster with the present addresses of its tasks."""
        return self._book.spec(self.cluster)

    def described_now(self) -> ClusterSpec | None:
        """Returns the cluster as its resolver describes it now; None: unknown.

        It may take seconds.
        """
        return self._book.look_up_all()

    def names_at(
        self, addresses: Iterable[str], timeout_seconds: float
    ) -> dict[str, str]:
        """Returns the names of the tasks that answer at some addresses.

        Args:
            addresses: The addresses, also of no task of the cluster.
            timeout_seconds: How long to wait for the answers.
        """
        return health.names_at(addresses, timeout_seconds)

    def device(self, task: Task) -> str:
        """Returns the device of a task on which work is placed.

        Returns:
            The first GPU of a worker that has one; else its CPU, also while
            the worker has never answered.
        """
        if task.job == WORKER:
            with self._lock:
                status = self._statuses.get(task)
            if status is not None and status.gpu_names:
                return status.gpu_names[0]
        return f"{task.name}/device:CPU:0"

    def device_names(self, task: Task) -> tuple[str, ...]:
        """Returns full names of the devices of a task.

        Returns:
            The names; none while the task has never answered.
        """
        with self._lock:
            status = self._statuses.get(task)
        return () if status is None else status.device_names

    def incarnation(self, task: Task) -> int:
        """Returns the incarnation of the task that is connected.

        Returns:
            The number. For a task that is taken out it is 0, which no living
            task has.
        """
        if task not in self._view.listed:
            return _NO_INCARNATION
        with self._lock:
            return self._statuses[task].incarnation

    @property
    def listed(self) -> frozenset[Task]:
        """The tasks that TensorFlow knows now."""
        return self._view.listed

    def probe(
        self, task: Task, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS
    ) -> TaskStatus:
        """Asks a task's server for its status; needs no connection.

        A task that is taken out is asked at the address that the cluster
        resolver has for it now.

        Raises:
            TaskUnreachableError: If it does not answer in time, or another
                task answers in its place.
        """
        if task in self.listed:
            return health.probe_task(self._book.now(task), timeout_seconds)
        here = self._book.look_again(task, timeout_seconds)
        return health.probe_task(here, timeout_seconds)

    def is_same_incarnation(
        self, task: Task, timeout_seconds: float = _PROBE_TIMEOUT_SECONDS
    ) -> bool:
        """Returns whether a task lives and is still the connected process."""
        try:
            status = self.probe(task, timeout_seconds)
        except errors.TaskUnreachableError:
            return False
        return status.incarnation == self.incarnation(task)

    def break_connections(self, task: Task) -> None:
        """Fails everything in this process that waits for a task.

        Args:
            task: A worker or ps. The next call to it connects again.
        """
        connections.break_to([self._book.now(task).address])

    def are_answering(self) -> bool:
        """Returns whether no listed task is silent.

        A dead task is not silent: its machine refuses connections to it.
        """
        return not self._silent_tasks()

    def stop_waiting(self) -> None:
        """Fails everything in this process that waits for a silent task."""
        for task in self._silent_tasks():
            _logger.warning(
                "%s at %s does not answer, and functions are traced without "
                "it.",
                task,
                task.address,
            )
            connections.break_to([task.address])

    def _silent_tasks(self) -> list[Task]:
        with self._lock:
            if self._is_closed:
                return []
        return health.silent_tasks(
            map(self._book.now, self.listed), _PROBE_TIMEOUT_SECONDS
        )

    @property
    def num_changes(self) -> int:
        """A number that changes when a change of the cluster begins or ends."""
        return self._view.num_changes

    def delist(self, task: Task) -> frozenset[Task]:
        """Takes a task out of the cluster; everything that it held is gone.

        TensorFlow would hang on any other listed task that is dead. Workers
        that fail several probes in a row are therefore taken out with it, and
        their incarnation becomes 0.

        Args:
            task: A worker or ps; nothing happens if it is not listed.

        Returns:
            All tasks that were taken out.

        Raises:
            TaskUnreachableError: If a ps that is to stay does not answer.
                Nothing is changed then: a ps is never given up unasked.
            TaskLostError: If TensorFlow does not finish in time. It goes on,
                and no other change is made before it has finished.
        """
        with self._change_lock:
            self._view.await_earlier_change()
            listed = self.listed
            if self._is_closed or task not in listed:
                return frozenset()
            dead = self._find_dead(listed - {task})
            gone = dead | {task}
            self._view.change(listed - gone)
        for each in dead:
            _logger.warning(
                "%s at %s does not answer either, and was taken out too.",
                each,
                self._book.now(each).address,
            )
        return gone

    def readmit(self, task: Task, *, unless_listed: bool = False) -> None:
        """Takes a task into the cluster again, with nothing on it.

        A task that is still listed, but restarted, gets a new context too.

        Args:
            task: A worker or ps of the cluster that answers.
            unless_listed: Whether to leave a task that is listed and the same
                process as it is: another strategy has taken it in and uses it.

        Raises:
            TaskUnreachableError: If it, or a listed ps, does not answer, or if
                it was removed. Nothing is changed then.
            TaskLostError: If TensorFlow does not finish in time. It goes on,
                and no other change is made before it has finished.
        """
        if self._enrolment.is_removed(task):
            raise errors.TaskUnreachableError(
                f"{task} at {task.address} was removed from the cluster. "
                "Expected a task that belongs to it. Add it again with "
                f"coordinator.add_{task.job}().",
                address=task.address,
                reason="it was removed",
            )
        status = self.probe(task)
        if task.job == WORKER:
            self._require_devices(task, status)
        with self._lock:
            is_leaving = status.incarnation in self._leaving
        if is_leaving:
            raise errors.TaskUnreachableError(
                f"{task} at {task.address} has left, and is about to end. "
                "Expected another process in its place.",
                address=task.address,
                reason="it has left, and is about to end",
            )
        with self._change_lock:
            self._view.await_earlier_change()
            if self._is_closed:
                return
            if unless_listed and status.incarnation == self.incarnation(task):
                return
            others = self.listed - {task}
            others -= self._find_dead(others)
            if task in self.listed:
                # A task that leaves and comes is certain to get a new context.
                self._view.change(others)
            # Before it is listed: others compare it with what answers there.
            with self._lock:
                self._statuses[task] = status
            self._view.change(others | {task})
        here = self._book.now(task)
        if task.job == PARAMETER_SERVER:
            leftovers.free([here])
        self._announcer.chief_here([here])

    def _find_dead(self, tasks: Iterable[Task]) -> frozenset[Task]:
        return runtime_view.find_dead(tasks, self._book, self.parameter_servers)

    def _require_devices(self, task: Task, status: TaskStatus) -> None:
        lacking = self.missing_devices(status.device_names)
        if lacking:
            reason = (
                f"it lacks {', '.join(lacking)}, which replicas of a worker "
                "compute on"
            )
            raise errors.TaskUnreachableError(
                f"{task} cannot be taken in: {reason}. Received: devices="
                f"{', '.join(status.device_names)}. Start it with the devices "
                "that the other workers have.",
                address=task.address,
                reason=reason,
            )

    def close(self) -> None:
        """Ends the job: tells every living task that it is over.

        Called when the interpreter exits, unless by an uncaught exception:
        then the tasks wait for the chief to come back. May be called again.
        Values on the tasks that are still referred to can no longer be read.
        """
        self._end(serving_on=(), reason="ended together with its cluster")

    def _end(self, serving_on: Iterable[Task], *, reason: str) -> None:
        """Ends the job, but not the tasks that the next session goes on with.

        Args:
            serving_on: Tasks of that session; they are told nothing.
            reason: What has happened to the strategy.
        """
        # A forked child has inherited the session, but it is not the chief.
        if os.getpid() != self._process_id:
            return
        if not self.connection.end(reason):
            # TensorFlow waits for all calls before it changes its view. Calls
            # that it cannot cancel end with the connections to the tasks.
            connections.break_to(
                self._book.now(task).address
                for task in self.cluster.serving_tasks
            )
        # Somebody may be changing the membership, and hang.
        has_lock = self._change_lock.acquire(timeout=_DETACH_TIMEOUT_SECONDS)
        try:
            with self._lock:
                if self._is_closed:
                    return
                self._is_closed = True
            tensorflow_functions.ask_first(None)
            if has_lock:
                self._view.detach(_DETACH_TIMEOUT_SECONDS)
        finally:
            if has_lock:
                self._change_lock.release()
        if this_process.state.session is self:
            this_process.state.session = None
        atexit.unregister(self._close_at_exit)
        kept = {task.address for task in serving_on}
        told = [
            task
            for task in map(self._book.now, self.cluster.serving_tasks)
            if task.address not in kept
        ]
        if not told:
            return
        self._announcer.job_over(told)
        _logger.info("The job is over; its tasks were told to end.")

    def _serves(self, cluster: ClusterSpec) -> bool:
        with self._lock:
            if self._is_closed:
                return False
        if cluster in (self.requested, self._book.spec()):
            return True
        # In any order: who follows a list does so, too.
        members = (*self.workers, *self.parameter_servers)
        return {(task.job, task.address) for task in cluster.serving_tasks} == {
            (task.job, self._book.now(task).address) for task in members
        }

    def _begin(self) -> None:
        """Connects TensorFlow and makes the chief known to the tasks."""
        atexit.register(self._close_at_exit)
        self._announcer.identify()
        leftovers.free(self.parameter_servers)
        tensorflow_functions.ask_first(self)
        # For the next strategy on this cluster: the tasks have just answered.
        free_workers.prepare(_PREPARE_TIMEOUT_SECONDS)
        # Late ones are told when they are taken in.
        listed = self.listed
        self._announcer.chief_here(listed)
        _logger.info(
            "Connected as chief at %s to %d workers and %d ps.",
            self._chief_address,
            sum(task.job == WORKER for task in listed),
            len(self.parameter_servers),
        )

    def _close_at_exit(self) -> None:
        if program_end.by_exception():
            _logger.info(
                "The program ends by an exception: its tasks go on waiting "
                "for a chief."
            )
            return
        self.close()


def _wait_for_tasks(
    tasks: Sequence[Task], timeout_seconds: float, min_workers: int | None
) -> dict[Task, TaskStatus]:
    """Waits until tasks answer; says so while there is something to wait for.

    TensorFlow connects only afterwards: it would log every attempt that is
    refused.
    """
    with ProgressLine() as line:

        def show(num_ready: int, seconds: float) -> None:
            if num_ready < len(tasks):
                line.show(
                    progress_line.waiting_text(num_ready, len(tasks), seconds)
                )

        return health.wait_until_ready(
            tasks,
            timeout_seconds,
            on_round=show,
            on_log=line.close,
            quorum=Quorum(tasks, min_workers),
        )

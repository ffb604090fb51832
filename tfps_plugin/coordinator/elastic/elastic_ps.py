"""The methods of a coordinator that change its parameter servers."""

import contextlib
import gc
import logging
import time
from collections.abc import Callable
from typing import Any

from tfps_plugin import errors
from tfps_plugin.cluster.spec import Task
from tfps_plugin.coordinator import caller_checks
from tfps_plugin.coordinator.elastic import joining_ps
from tfps_plugin.coordinator.elastic.ps_moves import Moves
from tfps_plugin.coordinator.elastic.ps_moves import PsMoves
from tfps_plugin.coordinator.elastic.ps_moves import Resharder
from tfps_plugin.coordinator.elastic.safe_points import SafePoints
from tfps_plugin.coordinator.session_protocol import SessionLike
from tfps_plugin.coordinator.worker_pool import WorkerPool
from tfps_plugin.monitoring import events
from tfps_plugin.monitoring.counters import Counters
from tfps_plugin.monitoring.events import Events
from tfps_plugin.variables.chief.pending_writes import PendingWrites

_logger = logging.getLogger("tfps_plugin.coordinator")

_TIMEOUT_SECONDS = 3600.0
# How long a checkpoint or an export may take that is being written.
_WRITE_SECONDS = 600.0


class ElasticParameterServers:
    """Adds and removes parameter servers; a base class of the coordinator.

    Threading: any thread, but for those of scheduled functions.
    """

    _pool: WorkerPool
    _safe_points: SafePoints
    counters: Counters
    events: Events
    strategy: Any

    @property
    def safe_points(self) -> SafePoints:
        """Moments at which no function of the program runs on the cluster."""
        return self._safe_points

    @property
    def ps_indices(self) -> tuple[int, ...]:
        """Indices of the parameter servers of the cluster, ascending.

        They are 0, 1, ... until one is removed.
        """
        session: SessionLike = self.strategy.session
        return tuple(task.index for task in session.parameter_servers)

    @property
    def num_ps(self) -> int:
        """Number of parameter servers of the cluster, present or not."""
        return len(self.ps_indices)

    def add_ps(
        self, address: str, *, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> int:
        """Adds a parameter server to the cluster, while it trains or not.

        Its process serves as the parameter server with the index that this
        returns: the lowest that none has had. Tables that are sharded over all
        parameter servers get shards on it, other variables move there for
        balance. Rows and slots are copied while training goes on. It then
        pauses for what has changed in the meantime, and functions are traced
        again. Returns when training goes on. `docs/elastic.md` says more.

        If another thread runs the program, training pauses when that thread
        next calls the coordinator, or begins a step of `fit`.

        Args:
            address: Its address, `"host:port"`. If it is that of a parameter
                server that was removed, this one gets its index.
            timeout_seconds: How long to wait for its answer, and for the
                program to pause.

        Returns:
            Its index.

        Raises:
            ClusterConfigurationError: If `address` is malformed, or another
                task has it.
            TaskUnreachableError: If it does not answer in time.
            TimeoutError: If the program does not pause in time, or another
                change goes on. Nothing is changed then.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced.
            BaseException: What a function of the program has raised.
            tf.errors.OpError: If it, or another parameter server, was lost
                while variables were copied. Nothing is changed then.
        """
        caller_checks.refuse_inside("add_ps")
        session: SessionLike = self.strategy.session
        session.connection.require()
        deadline = time.monotonic() + timeout_seconds
        with self._ps_moves.turn(deadline):
            for task in session.parameter_servers:
                if task.address == address:
                    raise errors.ClusterConfigurationError(
                        "This parameter server belongs to the cluster already; "
                        "expected the address of another one. Received: "
                        f"address={address!r}, which is that of parameter "
                        f"server {task.index}."
                    )
            task = session.add_ps(address)
            with joining_ps.joining(session, task, deadline):
                tasks = (*session.parameter_servers, task)
                self._move(
                    tuple(sorted(tasks, key=lambda each: each.index)),
                    deadline,
                    lambda: session.join_ps(task),
                )
        return int(task.index)

    def remove_ps(
        self, ps_index: int, *, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        """Removes a parameter server from the cluster, while it trains or not.

        What it holds moves to the others, as `add_ps` describes. Then its
        process is told to end. Its index is not used again, unless its address
        is added again.

        Args:
            ps_index: One of `ps_indices`.
            timeout_seconds: How long to wait for the program to pause.

        Raises:
            ValueError: If it is not the index of a parameter server, or of the
                last one.
            ClusterConfigurationError: If the options of the strategy need it,
                as `replicate` needs two.
            TimeoutError: If the program does not pause in time. Nothing is
                changed then.
            UnsupportedError: When called inside a scheduled function or while
                a `tf.function` is traced; if functions of another strategy of
                this program run.
            tf.errors.OpError: If a parameter server was lost while variables
                were copied. Nothing is changed then.
        """
        caller_checks.refuse_inside("remove_ps")
        session: SessionLike = self.strategy.session
        session.connection.require()
        deadline = time.monotonic() + timeout_seconds
        with self._ps_moves.turn(deadline):
            by_index = {task.index: task for task in session.parameter_servers}
            if ps_index not in by_index:
                raise ValueError(
                    "There is no such parameter server to remove. Expected one "
                    f"of {sorted(by_index)}. Received: ps_index={ps_index!r}. "
                    "Take one of coordinator.ps_indices."
                )
            left = tuple(t for i, t in by_index.items() if i != ps_index)
            if not left:
                raise ValueError(
                    "The last parameter server cannot be removed: nothing "
                    "would hold the variables. Expected another one to be "
                    f"left. Received: ps_index={ps_index!r}. Add one before, "
                    "with coordinator.add_ps()."
                )
            self._resharder.require_number(len(left))
            leaving = by_index[ps_index]

            def retire() -> None:
                session.note_leaving(leaving)
                session.retire(leaving)
                self._pool.ps_removed(leaving)

            self._move(left, deadline, retire)
            # It has copies of variables, which are being written.
            writes = session.connection.part(PendingWrites)
            if not writes.wait(_WRITE_SECONDS):
                _logger.warning(
                    "A checkpoint or an export that is being written may fail: "
                    "parameter server %d, which has a part of it, ends after "
                    "%.0f s.",
                    ps_index,
                    _WRITE_SECONDS,
                )
            # Otherwise TensorFlow would free variables there later, and log
            # that it cannot.
            gc.collect()
            with contextlib.suppress(
                errors.TaskUnreachableError, errors.TaskLostError
            ):
                session.delist(leaving)
            session.let_go(leaving)

    @property
    def _resharder(self) -> Resharder:
        resharder: Resharder = self.strategy.resharder
        return resharder

    def move_variables(
        self, begin: Callable[[], Moves | None], timeout_seconds: float
    ) -> tuple[int, float] | None:
        """Moves variables between the parameter servers that there are.

        Args:
            begin: Plans the moves, when no other change goes on; None: there
                is nothing to move.
            timeout_seconds: How long to wait for the program to pause.

        Returns:
            Number of bytes that have moved, and the seconds of the pause; None
            if there was nothing to move.

        Raises:
            TimeoutError: If the program does not pause in time, or another
                change goes on. Nothing is changed then.
            tf.errors.OpError: If a parameter server was lost. Nothing is
                changed then.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._ps_moves.turn(deadline):
            moves = begin()
            if moves is None:
                return None
            return self._ps_moves.run(moves, deadline, lambda: None)

    @property
    def _ps_moves(self) -> PsMoves:
        return PsMoves(self.strategy, self._safe_points)

    def _move(
        self,
        tasks: tuple[Task, ...],
        deadline: float,
        then: Callable[[], None],
    ) -> None:
        """Moves variables, and goes on with other parameter servers.

        Args:
            tasks: The parameter servers that there will be.
            deadline: Time (monotonic) by which the program has to pause.
            then: Called when everything has moved.
        """
        session: SessionLike = self.strategy.session
        began_at = time.monotonic()
        num_bytes, paused_seconds = self._ps_moves.run(
            self._resharder.begin(tasks), deadline, then
        )
        self.counters.increment("ps_changes")
        self.events.publish(
            events.ParameterServersChanged(
                tuple(task.index for task in session.parameter_servers),
                num_bytes,
                time.monotonic() - began_at,
                paused_seconds,
            )
        )

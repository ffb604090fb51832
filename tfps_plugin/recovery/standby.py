"""Standby copies: a second copy of every shard, on the next ps."""

import logging
import threading
import weakref
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.recovery import directory_shard
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.directory_copy import DirectoryCopy
from tfps_plugin.recovery.directory_shard import DirectoryShard
from tfps_plugin.recovery.locked_reads import LockedReads
from tfps_plugin.recovery.variable_copy import VariableCopy
from tfps_plugin.recovery.variable_copy import part_of
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable

_logger = logging.getLogger("tfps_plugin.recovery")

# Interval at which the thread checks how many steps were made.
_LOOK_SECONDS = 0.1
# Pause after an update that failed because a parameter server did not answer.
_RETRY_SECONDS = 1.0


class Standby:
    """Background thread that updates the copies at an interval of steps.

    Guarantees: while updates keep up, a lost ps costs at most the last
    `every_steps` steps. If updates fall behind, the log says so once.
    Threading: the coordinator calls `start` and `stop`, once each.
    """

    def __init__(self, copies: "StandbyCopies", every_steps: int) -> None:
        """Prepares the updates; starts no thread yet.

        Args:
            copies: The copies to update.
            every_steps: Largest number of steps between two updates.
        """
        self._copies = copies
        self._every_steps = every_steps
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        # The error that was logged last: the next tries often fail alike.
        self._told = ""

    def start(self, coordinator: Any) -> None:
        """Starts the thread.

        Args:
            coordinator: Provides the step counters, and `is_recovering`.
        """
        self._stopped.clear()
        counters = coordinator.counters

        def steps() -> int:
            # A scheduled function counts as one step; `fit` counts its own
            # steps. Adding both counts some twice, which only copies earlier.
            return int(
                counters.value("steps_done") + counters.value("closures_done")
            )

        # A coordinator that was never closed must not be kept alive.
        reference = weakref.ref(coordinator)

        def is_recovering() -> bool:
            still_there = reference()
            return still_there is not None and bool(still_there.is_recovering)

        self._thread = threading.Thread(
            target=self._run,
            args=(steps, is_recovering),
            name="tfps-standby",
            daemon=True,
        )
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Stops the thread, and waits for it at most `timeout_seconds`."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            self._thread = None

    def _run(
        self, steps: Callable[[], int], is_recovering: Callable[[], bool]
    ) -> None:
        executor = tensorflow_execution.new_synchronous_executor()
        with tensorflow_execution.executor_scope(executor):
            copied_at = -self._every_steps
            has_warned = False
            while not self._stopped.wait(_LOOK_SECONDS):
                begun_at = steps()
                if not begun_at or is_recovering():
                    continue
                # The other half of the steps may be made during the update.
                if begun_at - copied_at < max(1, self._every_steps // 2):
                    continue
                if not self._update(executor):
                    self._stopped.wait(_RETRY_SECONDS)
                    continue
                is_first = copied_at < 0
                lag = steps() - copied_at
                copied_at = begun_at
                if lag > self._every_steps and not (is_first or has_warned):
                    has_warned = True
                    _logger.warning(
                        "Standby copies cannot be updated as often as every "
                        "%d steps: training made %d steps before this update "
                        "was complete. The loss of a parameter server may "
                        "cost that many steps. Increase "
                        "replicate_every_steps of tfps.RecoveryOptions to at "
                        "least that number.",
                        self._every_steps,
                        lag,
                    )

    def _update(self, executor: Any) -> bool:
        """Updates the copies; returns whether that succeeded."""
        try:
            self._copies.update()
        except tf.errors.FailedPreconditionError:
            # A variable is being created and has no value yet.
            tensorflow_execution.forget_error(executor)
            return False
        except Exception as error:
            tensorflow_execution.forget_error(executor)
            if (
                not chief_reads.is_about_the_cluster(error)
                and str(error) != self._told
            ):
                self._told = str(error)
                _logger.exception("Standby copies could not be updated")
            return False
        self._told = ""
        return True


class StandbyCopies:
    """Copies of what parameter servers hold, each on the next one.

    Values travel via the chief; of a table, only the rows that have changed.
    Training continues meanwhile, so rows are copied at different moments. Of a
    table without a vocabulary, each row is of one moment with its id and slots.

    Threading: safe from several threads. Guarded by `_lock`: the copies, while
    they are created and used.
    """

    def __init__(self, strategy: Any) -> None:
        """Begins without copies.

        Args:
            strategy: A `tfps.ParameterServerStrategy` with two ps or more.
        """
        self._strategy = weakref.ref(strategy)
        self._lock = threading.Lock()
        self._copies: dict[int, VariableCopy] = {}
        self._reads = LockedReads()

    def update(self) -> None:
        """Copies what has changed since the last update.

        Must not begin while a ps is being recovered.

        Raises:
            tf.errors.OpError: If a ps does not answer, or was replaced.
        """
        with self._lock:
            self._forget_gone()
            strategy = self._strategy()
            if strategy is None:
                return
            devices = {
                strategy.session.device(task)
                for task in strategy.session.parameter_servers
            }
            # Without those that are just moving: the next update copies them.
            variables = strategy.inventory.on(
                devices.intersection(strategy.ps_devices)
            )
            # A handle that has changed by the time of the read means that the
            # ps was replaced: earlier copies are then not of this variable.
            handles = {id(each): each.own_handle for each in variables}
            copies = {
                id(each): self._copy_of(strategy, each) for each in variables
            }
            shards = directory_shard.find(variables)

            def update_shard(shard: DirectoryShard) -> None:
                DirectoryCopy(shard, copies).update(handles, self._reads)

            def update(part: Part) -> None:
                key = id(part.variable)
                copies[key].update(part.variable.device, handles[key])

            _on_every_device(variables, shards, update, update_shard)

    def parts(self) -> list[Part]:
        """Returns the variables with a copy on a ps that still holds it."""
        with self._lock:
            return [part_of(variable) for variable in self._usable()]

    def restore_parts(self, parts: Sequence[Part]) -> str:
        """Assigns the copies to their variables.

        Args:
            parts: Some of `parts()`, of one parameter server or more.

        Returns:
            A description of where the values came from.

        Raises:
            tf.errors.OpError: If a ps does not answer.
        """
        with self._lock:
            copies = {
                id(each): self._copies[id(each)] for each in self._usable()
            }
            variables = [part.variable for part in parts]

            def restore_shard(shard: DirectoryShard) -> None:
                DirectoryCopy(shard, copies).restore()

            def restore(part: Part) -> None:
                copies[id(part.variable)].restore(part.variable.device)

            _on_every_device(
                variables,
                directory_shard.find(variables),
                restore,
                restore_shard,
            )
        return "the standby copies on other parameter servers"

    def _copy_of(self, strategy: Any, variable: RemoteVariable) -> VariableCopy:
        session = strategy.session
        tasks = session.parameter_servers
        devices = [session.device(task) for task in tasks]
        next_one = (devices.index(variable.device) + 1) % len(devices)
        incarnation = session.incarnation(tasks[next_one])
        copy = self._copies.get(id(variable))
        if copy is None or copy.incarnation != incarnation:
            copy = VariableCopy(variable, devices[next_one], incarnation)
            self._copies[id(variable)] = copy
        return copy

    def _usable(self) -> list[RemoteVariable]:
        strategy = self._strategy()
        if strategy is None:
            return []
        incarnations = {
            strategy.session.device(task): strategy.session.incarnation(task)
            for task in strategy.session.parameter_servers
        }
        known = {
            id(variable): (variable, copy)
            for copy in self._copies.values()
            if (variable := copy.variable()) is not None
        }
        usable = {
            key: variable
            for key, (variable, copy) in known.items()
            if copy.handle is not None
            and copy.incarnation == incarnations.get(copy.mirror.device)
        }
        try:
            shards = directory_shard.find([each for each, _ in known.values()])
        except tf.errors.AbortedError:
            return []  # the next update makes new copies of what is moving
        for shard in shards:
            # The ids of one source are not those of the rows of another one.
            if any(id(each) not in usable for each in shard.members):
                for each in shard.members:
                    usable.pop(id(each), None)
        return list(usable.values())

    def _forget_gone(self) -> None:
        self._copies = {
            key: copy
            for key, copy in self._copies.items()
            if copy.variable() is not None
        }


def _on_every_device(
    variables: Sequence[RemoteVariable],
    shards: Sequence[DirectoryShard],
    act: Callable[[Part], None],
    act_on_shard: Callable[[DirectoryShard], None],
) -> None:
    """Calls a function for each variable, on a thread for each ps.

    Args:
        variables: The variables.
        shards: Those of them that are shards of tables without a vocabulary.
        act: Called for each other variable, as a part of itself.
        act_on_shard: Called for each of those shards.
    """
    shard_of = {id(shard.rows): shard for shard in shards}
    beside = {
        id(each)
        for shard in shards
        for each in shard.members
        if each is not shard.rows
    }

    def act_on_all(device: str, own: Sequence[Part]) -> None:
        del device
        for part in own:
            key = id(part.variable)
            if key in shard_of:
                act_on_shard(shard_of[key])
            elif key not in beside:
                act(part)

    part_files.on_every_device(
        [part_of(each) for each in variables], act_on_all
    )

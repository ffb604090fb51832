"""Standby copies: a second copy of every shard, on the next ps."""

import logging
import threading
import weakref
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.recovery import transfers
from tfps_plugin.recovery.checkpoints import part_files
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import change_files
from tfps_plugin.recovery.incremental import row_marks
from tfps_plugin.recovery.incremental.row_marks import Mark
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
            if not chief_reads.is_about_the_cluster(error):
                _logger.exception("Standby copies could not be updated")
            return False
        return True


class _Copy:
    """Copy of one variable or shard.

    Attributes:
        variable: Weak reference to the original.
        mirror: The copy, on another ps.
        incarnation: Incarnation of that ps when the copy was created.
        mark: Mark of the rows at the last update; None for a variable that is
            no table.
        handle: Handle of the original at the last update; None before it.
    """

    def __init__(
        self, variable: RemoteVariable, device: str, incarnation: int
    ) -> None:
        self.variable = weakref.ref(variable)
        self.mirror = RemoteVariable(
            device,
            variable.shape,
            variable.dtype,
            f"standby/{variable.path}",
            trainable=False,
        )
        self.incarnation = incarnation
        self.mark: Mark | None = None
        self.handle: Any = None


class StandbyCopies:
    """Copies of what parameter servers hold, each on the next one.

    Values travel via the chief; of a table, only the rows that have changed.
    Training continues meanwhile, so rows are copied at different moments.

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
        self._copies: dict[int, _Copy] = {}

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

            def update(device: str, own: Sequence[Part]) -> None:
                for part in own:
                    key = id(part.variable)
                    _update(device, part, copies[key], handles[key])

            part_files.on_every_device(
                [_part(each) for each in variables], update
            )

    def parts(self) -> list[Part]:
        """Returns the variables with a copy on a ps that still holds it."""
        with self._lock:
            return [_part(variable) for variable, _ in self._usable()]

    def restore_parts(self, parts: Sequence[Part]) -> str:
        """Assigns the copies to their variables.

        Args:
            parts: Some of `parts()`.

        Returns:
            A description of where the values came from.

        Raises:
            tf.errors.OpError: If a ps does not answer.
        """
        with self._lock:
            copies = {id(variable): copy for variable, copy in self._usable()}

            def restore(device: str, own: Sequence[Part]) -> None:
                for part in own:
                    _restore(device, part, copies[id(part.variable)])

            part_files.on_every_device(parts, restore)
        return "the standby copies on other parameter servers"

    def _copy_of(self, strategy: Any, variable: RemoteVariable) -> _Copy:
        session = strategy.session
        tasks = session.parameter_servers
        devices = [session.device(task) for task in tasks]
        next_one = (devices.index(variable.device) + 1) % len(devices)
        incarnation = session.incarnation(tasks[next_one])
        copy = self._copies.get(id(variable))
        if copy is None or copy.incarnation != incarnation:
            copy = _Copy(variable, devices[next_one], incarnation)
            self._copies[id(variable)] = copy
        return copy

    def _usable(self) -> Iterator[tuple[RemoteVariable, _Copy]]:
        strategy = self._strategy()
        if strategy is None:
            return
        incarnations = {
            strategy.session.device(task): strategy.session.incarnation(task)
            for task in strategy.session.parameter_servers
        }
        for copy in self._copies.values():
            variable = copy.variable()
            if variable is None or copy.handle is None:
                continue
            if copy.incarnation == incarnations.get(copy.mirror.device):
                yield variable, copy

    def _forget_gone(self) -> None:
        self._copies = {
            key: copy
            for key, copy in self._copies.items()
            if copy.variable() is not None
        }


def _part(variable: RemoteVariable) -> Part:
    shape = tuple(variable.shape.as_list())
    return Part(variable.path, variable, 0, shape)


def _update(device: str, part: Part, copy: _Copy, handle: Any) -> None:
    """Updates one copy."""
    if not row_marks.is_table(part):
        value = transfers.read(part.variable)
        _require_same(part, handle)
        transfers.assign(copy.mirror, value)
    elif copy.handle is handle and copy.mark is not None:
        rows, values, mark = change_files.take_changes(device, part, copy.mark)
        _require_same(part, handle)
        # After a failure halfway, it is unknown which rows were copied.
        copy.mark = None
        transfers.write_rows(part, rows, values, copy.mirror)
        copy.mark = mark
    else:
        # Marked before copying: later changes are copied by the next update.
        mark = change_files.take_mark(device, part)
        _require_same(part, handle)
        copy.handle = copy.mark = None
        transfers.copy_rows(part.variable, copy.mirror)
        copy.mark = mark
    copy.handle = handle


def _restore(device: str, part: Part, copy: _Copy) -> None:
    """Assigns its copy to a variable that was created again."""
    if row_marks.is_table(part):
        transfers.copy_rows(copy.mirror, part.variable)
        copy.mark = change_files.take_mark(device, part)
    else:
        transfers.assign(part.variable, transfers.read(copy.mirror))
    copy.handle = part.variable.own_handle


def _require_same(part: Part, handle: Any) -> None:
    if part.variable.own_handle is not handle:
        raise tf.errors.AbortedError(
            None, None, f"The parameter server of {part.key} was replaced."
        )

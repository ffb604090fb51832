"""Newest readable checkpoint of a folder, as a source for replaced ps."""

import logging
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.runtime import tensorflow_strategy
from tfps_plugin.monitoring import events
from tfps_plugin.recovery import failover
from tfps_plugin.recovery.checkpoints import parts as parts_module
from tfps_plugin.recovery.checkpoints import shared_folder
from tfps_plugin.recovery.checkpoints.checkpoint_folder import CheckpointFolder
from tfps_plugin.recovery.checkpoints.checkpoint_writer import first_line
from tfps_plugin.recovery.checkpoints.parts import Part
from tfps_plugin.recovery.incremental import increments
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.kinds import sharded_variable

_logger = logging.getLogger("tfps_plugin.recovery")

# Reading a damaged checkpoint raises one of these; TensorFlow's reader raises
# an IndexError for a truncated file. Some also stand for a problem of the
# cluster or of the program, which has to be told apart.
_UNREADABLE = (tf.errors.OpError, OSError, ValueError, IndexError)
_NOT_ABOUT_FILES = (
    errors.CheckpointMismatchError,
    tf.errors.ResourceExhaustedError,
    tf.errors.CancelledError,
)


class CheckpointSource:
    """Finds the newest readable checkpoint, and restores replaced ps from it.

    Threading: safe from several threads. Guarded by `_lock`: the variables and
    the boards.
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        """Begins without variables: nothing was written or restored yet."""
        self._folder = folder
        self._lock = threading.Lock()
        # By key. Not their parts: shards change with the parameter servers.
        self._variables: dict[str, Any] = {}
        self._boards: list[events.Events] = []

    @property
    def boards(self) -> list[events.Events]:
        """The boards of the coordinators whose variables were registered."""
        with self._lock:
            return list(self._boards)

    def register(self, parts: list[Part]) -> None:
        """Offers the folder to the failover of the strategies of parts.

        Args:
            parts: The parts that the newest checkpoint has values for.
        """
        strategies = {
            id(s): s
            for part in parts
            if (s := tensorflow_strategy.strategy_of(part.variable)) is not None
        }
        coordinators = [
            getattr(strategy, "_cluster_coordinator", None)
            for strategy in strategies.values()
        ]
        with self._lock:
            self._variables = {
                part.key: sharded_variable.whole_of(part.variable)
                for part in parts
            }
            self._boards = [c.events for c in coordinators if c is not None]
        for strategy in strategies.values():
            known = failover.of(strategy)
            if known is not None:
                known.add(self)

    def parts(self) -> list[Part]:
        """Returns the parts that the newest checkpoint has values for."""
        with self._lock:
            variables = dict(self._variables)
        return [
            part
            for key, variable in variables.items()
            for part in parts_module.parts_of(key, variable)
        ]

    def restore_parts(self, parts: Sequence[Part]) -> str:
        """Assigns the values of the newest readable checkpoint to parts.

        Args:
            parts: Some of `parts()`.

        Returns:
            The prefix of the checkpoint.

        Raises:
            CheckpointUnreadableError: If no checkpoint is left, or none can
                be read.
            tf.errors.OpError: If a ps does not answer.
        """

        def restore(prefix: str) -> None:
            devices = sorted(parts_module.by_device(parts))
            increments.restore(
                parts,
                increments.chain_of(prefix),
                by_ps=shared_folder.is_same_file(prefix + ".index", devices),
            )

        prefix = self.read_newest(restore)
        if prefix is None:
            raise errors.CheckpointUnreadableError(
                "The checkpoints of a folder are gone. Expected those that "
                "were written there to stay. Received: directory="
                f"{self._folder.path!r}. Restore the folder from a backup."
            )
        return prefix

    def read_newest(self, read: Callable[[str], None]) -> str | None:
        """Reads the newest checkpoint that can be read.

        A damaged one is logged with its name and reason, and the next older
        one is tried.

        Args:
            read: Reads the checkpoint of a prefix.

        Returns:
            The prefix that was read; None if the folder has no checkpoint.

        Raises:
            CheckpointUnreadableError: If there are checkpoints, but none can
                be read; it names each with its reason.
            BaseException: What `read` raised for another reason.
        """
        for prefix in self._folder.without_index():
            _log_unreadable(prefix, "its index is missing")
        reasons = []
        for prefix in reversed(self._folder.prefixes().values()):
            try:
                read(prefix)
            except _NOT_ABOUT_FILES:
                raise
            except _UNREADABLE as error:
                if chief_reads.is_about_the_cluster(error):
                    raise
                reason = f"{type(error).__name__}: {first_line(error)}"
                reasons.append(f"  {prefix}: {reason}")
                _log_unreadable(prefix, reason)
                continue
            return prefix
        if reasons:
            raise errors.CheckpointUnreadableError(
                "None of the checkpoints can be read. Expected at least one "
                "undamaged checkpoint. Received: directory="
                f"{self._folder.path!r} with\n"
                + "\n".join(reasons)
                + "\nRestore the folder from a backup, or start training from "
                "the beginning with another folder."
            )
        return None


def _log_unreadable(prefix: str, reason: str) -> None:
    _logger.error(
        "The checkpoint %s cannot be read; the one before it is used: %s",
        prefix,
        reason,
    )

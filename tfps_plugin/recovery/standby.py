"""Keeps standby copies up to date while training goes on."""

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import tensorflow_execution
from tfps_plugin.recovery.standby_copies import StandbyCopies
from tfps_plugin.variables.chief import chief_reads

_logger = logging.getLogger("tfps_plugin")

# How often the thread looks how far training is.
_LOOK_SECONDS = 0.1
# How long it leaves parameter servers alone that have not answered.
_RETRY_SECONDS = 1.0


class Standby:
    """Has copies updated every so many steps, on a thread of its own.

    Guarantees: while updates keep up, what a lost ps had learnt is missing at
    most from the last `every_steps` steps; if they do not, the log says so.
    Threading: `start` and `stop` by the coordinator, once each.
    """

    def __init__(self, copies: StandbyCopies, every_steps: int) -> None:
        """Prepares; no thread runs yet.

        Args:
            copies: What to update.
            every_steps: After how many steps.
        """
        self._copies = copies
        self._every_steps = every_steps
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, coordinator: Any) -> None:
        """Starts the thread.

        Args:
            coordinator: Counts the steps, and knows whether a ps is away.
        """
        self._stopped.clear()
        counters = coordinator.counters

        def steps() -> int:
            # A function that is scheduled by a program is a step; those of
            # `fit` say how many they were. Counting both is on the safe side.
            return int(
                counters.value("steps_done") + counters.value("closures_done")
            )

        # The thread keeps no coordinator alive that was never closed.
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
        """Stops the thread."""
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
                # Half of them may be made while the copies are.
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
                        "%d steps: %d steps were made until this one was "
                        "complete. So many may be lost with a parameter "
                        "server. Set replicate_every_steps of "
                        "tfps.RecoveryOptions to it.",
                        self._every_steps,
                        lag,
                    )

    def _update(self, executor: Any) -> bool:
        try:
            self._copies.update()
        except tf.errors.FailedPreconditionError:
            # Something is being made that has no value yet.
            tensorflow_execution.forget_error(executor)
            return False
        except Exception as error:
            tensorflow_execution.forget_error(executor)
            is_expected = isinstance(
                error, tf.errors.OpError
            ) and chief_reads.is_about_the_cluster(error)
            if not is_expected:
                _logger.exception("Standby copies could not be updated")
            return False
        return True

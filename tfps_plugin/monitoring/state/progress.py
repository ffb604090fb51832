"""Progress of the program: epoch, steps, metrics."""

import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

_CountExamples = Callable[[], float | None]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Progress at one moment; see `JobState` for what is not explained here.

    Attributes:
        work: As there.
        is_running: As there.
        epoch: As there.
        num_epochs: As there.
        step: As there.
        steps_per_epoch: As there.
        metrics: Logs as numbers.
        running_seconds: As there.
    """

    work: str = ""
    is_running: bool = False
    epoch: int | None = None
    num_epochs: int | None = None
    step: int | None = None
    steps_per_epoch: int | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    running_seconds: float | None = None


class Progress:
    """Work of the program now; the program tells, others look.

    Threading: safe from any thread. Guarded by `_lock`: everything. Steps are
    counted while holding it: the chief knows their number. Examples are counted
    without it: workers are asked for them.
    """

    def __init__(self) -> None:
        """Begins with nothing that runs."""
        self._lock = threading.Lock()
        self._snapshot = Snapshot()
        self._began_at = 0.0
        self._live_logs: Mapping[str, Any] = {}
        self._count_steps: Callable[[], int] | None = None
        self._count_examples: _CountExamples | None = None
        # Of the epochs whose steps are done.
        self._examples_before: float | None = 0.0
        self._is_counting = False

    @property
    def work(self) -> str:
        """Name of the work that runs, or has run last."""
        with self._lock:
            return self._snapshot.work

    def begin(
        self,
        work: str,
        num_epochs: int | None,
        steps_per_epoch: int | None,
        count_examples: _CountExamples | None = None,
    ) -> None:
        """Tells that the program begins to run something.

        Args:
            work: A name, for people.
            num_epochs: Number of epochs; None: unknown.
            steps_per_epoch: Number of steps of an epoch; None: unknown.
            count_examples: Returns the number of examples of this epoch so far;
                None: nobody knows.
        """
        with self._lock:
            self._began_at = time.monotonic()
            self._snapshot = Snapshot(
                work,
                is_running=True,
                num_epochs=num_epochs,
                steps_per_epoch=steps_per_epoch,
            )
            self._live_logs = {}
            self._count_steps = None
            self._count_examples = count_examples
            self._examples_before = 0.0
            # Without epochs, there is one.
            self._is_counting = True

    def begin_epoch(self, epoch: int) -> None:
        """Tells that an epoch begins; it is number 1, 2, ..."""
        with self._lock:
            self._snapshot = dataclasses.replace(
                self._snapshot, epoch=epoch, step=0
            )
            self._count_steps = None
            self._is_counting = True

    def watch(
        self, count_steps: Callable[[], int], logs: Mapping[str, Any]
    ) -> None:
        """Tells where steps of the epoch are counted, and where its logs are.

        Args:
            count_steps: Returns the number of steps that are done; it waits
                for nothing.
            logs: A dictionary that is kept up to date.
        """
        with self._lock:
            self._count_steps = count_steps
            self._live_logs = logs

    def end_steps(self) -> None:
        """Tells that the steps of the epoch are done; validation may follow.

        From now on, whatever counts examples counts others.
        """
        with self._lock:
            count_examples = self._count_examples
        counted = None if count_examples is None else count_examples()
        with self._lock:
            if self._is_counting:
                self._examples_before = _sum(self._examples_before, counted)
            self._is_counting = False

    def end_epoch(self, logs: Mapping[str, Any] | None) -> None:
        """Tells that the epoch has ended, and with what logs."""
        with self._lock:
            step = self._steps_now()
            self._snapshot = dataclasses.replace(
                self._snapshot,
                step=step,
                metrics={**self._snapshot.metrics, **numbers(logs or {})},
            )
            self._count_steps = None
            self._live_logs = {}

    def end(self) -> None:
        """Tells that what ran has ended."""
        with self._lock:
            self._snapshot = dataclasses.replace(
                self._snapshot,
                is_running=False,
                step=self._steps_now(),
                running_seconds=time.monotonic() - self._began_at,
            )
            self._count_steps = None
            self._count_examples = None
            self._live_logs = {}

    def now(self) -> Snapshot:
        """Returns the progress of this moment."""
        with self._lock:
            snapshot = self._snapshot
            if not snapshot.is_running:
                return snapshot
            return dataclasses.replace(
                snapshot,
                step=self._steps_now(),
                # `copy` is one operation of Python: the program may change it.
                metrics={
                    **snapshot.metrics,
                    **numbers(dict(self._live_logs)),
                },
                running_seconds=time.monotonic() - self._began_at,
            )

    def num_examples(self) -> float | None:
        """Counts the examples of all epochs so far; it may ask workers.

        Returns:
            Their number; None if nobody knows, or if nothing runs.
        """
        with self._lock:
            began = self._counting()
        before, is_counting, count_examples = began
        if count_examples is None:
            return None
        now = count_examples() if is_counting else 0.0
        with self._lock:
            # Otherwise it may have counted those of another epoch.
            return _sum(before, now) if self._counting() == began else None

    def _counting(self) -> tuple[float | None, bool, _CountExamples | None]:
        return self._examples_before, self._is_counting, self._count_examples

    def _steps_now(self) -> int | None:
        if self._count_steps is None:
            return self._snapshot.step
        return self._count_steps()


def _sum(before: float | None, now: float | None) -> float | None:
    return None if before is None or now is None else before + now


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Returns those of some logs that are numbers.

    Args:
        logs: By name: numbers, arrays, or anything else.
    """
    found = {}
    for name, value in logs.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError):
            continue  # an array of several numbers, or no number
    return found

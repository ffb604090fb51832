"""The `fit`, `evaluate` or `predict` call that a thread is in."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any
from typing import Protocol

_thread_local = threading.local()


@dataclasses.dataclass(frozen=True)
class Place:
    """A position in a training, from which another program may resume.

    Attributes:
        epoch: Number of the epoch, from 0.
        step: Number of its steps that are done.
        num_splits: Number of splits of the epoch; 0 if the epoch is a number
            of steps, or if the chief reads the input in order.
        done_splits: Splits that need not be read.
    """

    epoch: int
    step: int
    num_splits: int = 0
    done_splits: tuple[int, ...] = ()


class Input(Protocol):
    """One input of a call: training or validation data."""

    def begin_at(self, place: Place) -> bool:
        """Begins the next epoch in its middle, if possible."""

    def splits(self) -> tuple[int, list[int]]:
        """Returns the number of splits of the epoch, and the done ones."""

    def sync(self) -> None:
        """Waits for the steps in flight."""

    def close(self) -> None:
        """Keeps closures from starting more steps."""


class RunningCall:
    """One call of `fit`, `evaluate` or `predict`.

    Attributes:
        method: Its name.
        model: Its model.
        show_all_batches: Whether a callback uses the logs of batches.
        workers_validate: Whether workers read the validation data of `fit`.

    Threading: only the thread that made the call uses it.
    """

    def __init__(
        self,
        method: str,
        model: Any,
        *,
        show_all_batches: bool,
        workers_validate: bool = False,
    ) -> None:
        """Begins the call."""
        self.method = method
        self.model = model
        self.show_all_batches = show_all_batches
        self.workers_validate = workers_validate
        self._inputs: list[Input] = []

    def add_input(self, call_input: Input) -> None:
        """Adds an input that the call reads."""
        self._inputs.append(call_input)

    def step_of(self, call_input: Input) -> str:
        """Returns the name of the model's step that runs on an input."""
        is_training = self.method == "fit" and self._inputs[0] is call_input
        return "train_step" if is_training else "test_step"

    def begin_at(self, place: Place) -> bool:
        """Makes `fit` begin its first epoch in its middle.

        Args:
            place: The position of an earlier program.

        Returns:
            Whether it will: not every input can resume.
        """
        return bool(self._inputs) and self._inputs[0].begin_at(place)

    def place(self, epoch: int, step: int) -> Place:
        """Returns the place of `fit`; no step may be in flight.

        Args:
            epoch: Number of the epoch.
            step: Number of its steps that are done.
        """
        if not self._inputs:
            return Place(epoch, step)
        num_splits, done = self._inputs[0].splits()
        return Place(epoch, step, num_splits, tuple(done))

    def sync(self) -> None:
        """Waits for the steps in flight; cheap if there are none."""
        for each in self._inputs:
            each.sync()

    def close(self) -> None:
        """Stops everything that waits for input."""
        for each in self._inputs:
            each.close()


@contextlib.contextmanager
def running(call: RunningCall) -> Iterator[None]:
    """Marks this thread as running `call`, perhaps inside another call."""
    outer = current()
    _thread_local.call = call
    try:
        yield
    finally:
        _thread_local.call = outer


def current() -> RunningCall | None:
    """Returns the innermost call that this thread is in."""
    return getattr(_thread_local, "call", None)

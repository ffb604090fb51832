"""The fit, evaluate or predict that a thread is in."""

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any
from typing import Protocol

_thread_local = threading.local()


@dataclasses.dataclass(frozen=True)
class Place:
    """A place inside a training, where another program may go on.

    Attributes:
        epoch: Number of the epoch, from 0.
        step: How many steps of it are done.
        num_splits: How many splits the epoch has; 0: it is a number of steps,
            or what the chief reads in its order.
        done_splits: Those that need not be read.
    """

    epoch: int
    step: int
    num_splits: int = 0
    done_splits: tuple[int, ...] = ()


class Input(Protocol):
    """One input of a call: training or validation data."""

    def begin_at(self, place: Place) -> bool:
        """Begins the next epoch inside of it, if it can."""

    def splits(self) -> tuple[int, list[int]]:
        """Returns the epoch's number of splits, and those that are done."""

    def sync(self) -> None:
        """Has what is in flight come to its end."""

    def close(self) -> None:
        """Lets no closure begin anything more."""


class RunningCall:
    """One call of `fit`, `evaluate` or `predict`.

    Attributes:
        method: Its name.
        model: Whose.
        show_all_batches: Whether a callback looks at the logs of batches.
        workers_validate: Whether workers read the validation data of `fit`.

    Threading: used by the thread that made the call alone.
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
        """Notes what it reads, too."""
        self._inputs.append(call_input)

    def step_of(self, call_input: Input) -> str:
        """The name of the model's step that runs on one of its inputs."""
        is_training = self.method == "fit" and self._inputs[0] is call_input
        return "train_step" if is_training else "test_step"

    def begin_at(self, place: Place) -> bool:
        """Has `fit` begin its first epoch at a place inside of it.

        Args:
            place: Where an earlier program was.

        Returns:
            Whether it will: not every input has a place to go on at.
        """
        return bool(self._inputs) and self._inputs[0].begin_at(place)

    def place(self, epoch: int, step: int) -> Place:
        """Returns the place of `fit`; no step may be in flight.

        Args:
            epoch: Number of the epoch.
            step: How many steps of it are done.
        """
        if not self._inputs:
            return Place(epoch, step)
        num_splits, done = self._inputs[0].splits()
        return Place(epoch, step, num_splits, tuple(done))

    def sync(self) -> None:
        """Has the steps in flight come to their end; cheap if none are."""
        for each in self._inputs:
            each.sync()

    def close(self) -> None:
        """Leaves nothing waiting for input."""
        for each in self._inputs:
            each.close()


@contextlib.contextmanager
def running(call: RunningCall) -> Iterator[None]:
    """Declares that this thread is in `call`, perhaps inside another one."""
    outer = current()
    _thread_local.call = call
    try:
        yield
    finally:
        _thread_local.call = outer


def current() -> RunningCall | None:
    """The innermost call that this thread is in."""
    return getattr(_thread_local, "call", None)

"""The fit, evaluate or predict that a thread is in."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from typing import Protocol

_thread_local = threading.local()


class Input(Protocol):
    """What a call reads: of `fit`, the training and the validation data."""

    def begin_at(self, step: int) -> bool:
        """Leaves out the first steps of the next epoch, if it can."""

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

    Threading: used by the thread that made the call alone.
    """

    def __init__(
        self, method: str, model: Any, *, show_all_batches: bool
    ) -> None:
        """Begins the call."""
        self.method = method
        self.model = model
        self.show_all_batches = show_all_batches
        self._inputs: list[Input] = []

    def add_input(self, call_input: Input) -> None:
        """Notes what it reads, too."""
        self._inputs.append(call_input)

    def begin_at(self, step: int) -> bool:
        """Has `fit` leave out the first steps of its first epoch.

        Args:
            step: How many.

        Returns:
            Whether it will: not every input has a place to go on at.
        """
        return bool(self._inputs) and self._inputs[0].begin_at(step)

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

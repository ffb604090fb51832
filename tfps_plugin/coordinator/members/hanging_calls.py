"""Calls that a lost parameter server has left hanging.

A call that needs a parameter server fails when that is lost, or when it is
found to be lost: TensorFlow then cancels the parts of the call that other tasks
run. If the one part fails while the next is being sent, it is too early to
cancel that one, and nobody does so later
(`EagerClusterFunctionLibraryRuntime::Run` registers the cancellation before
there is a request to be cancelled; TensorFlow 2.20, 2.21). That part waits for
ever, and so does the call, while every task is well.

Once the parameter server is back, it has nothing of the call. So the call
fails, or hangs, or had what it needed before: nobody can tell the last two
apart, and a function that was in flight may run again after a loss anyhow.

Pure: the caller says what time it is, in seconds of any steady clock.
"""

import collections
from collections.abc import Collection
from collections.abc import Iterator
from typing import NamedTuple


class Restored(NamedTuple):
    """Parameter servers that are back.

    Attributes:
        parameter_servers: Their indices.
        at: When; calls that began before knew them as they were.
    """

    parameter_servers: Collection[int]
    at: float


class HangingCalls:
    """Says when to look for them. Not thread-safe."""

    def __init__(self, patience_seconds: float) -> None:
        """Begins with nothing to look for.

        Args:
            patience_seconds: How long calls have to fail by themselves.
        """
        self._patience_seconds = patience_seconds
        self._restored: collections.deque[Restored] = collections.deque()

    def restored(self, parameter_servers: Collection[int], now: float) -> None:
        """Notes that some are back, and that no call has begun since.

        Args:
            parameter_servers: Their indices.
            now: The time.
        """
        if parameter_servers:
            self._restored.append(Restored(parameter_servers, now))

    def due(self, now: float) -> Iterator[Restored]:
        """Those that calls had enough time to miss, each once.

        Args:
            now: The time.
        """
        while self._restored and (
            now - self._restored[0].at >= self._patience_seconds
        ):
            yield self._restored.popleft()

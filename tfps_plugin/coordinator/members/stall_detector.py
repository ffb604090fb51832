"""Detection of tasks and calls that have stalled.

Pure: the caller passes the time, in seconds of any steady clock.
"""

import collections
import math
from collections.abc import Collection
from collections.abc import Hashable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import NamedTuple


class Restored(NamedTuple):
    """Parameter servers that are back.

    Attributes:
        parameter_servers: Their indices.
        at: When they were restored. A call that began earlier used the
            processes that were lost.
    """

    parameter_servers: Collection[int]
    at: float


class StallDetector:
    """Decides which tasks to probe, and when a task or a call has stalled.

    *Silent tasks.* A task that dies closes its connections, so its peers find
    out. A task that hangs, or whose machine is gone, has to be probed. This
    includes tasks that no closure waits for: TensorFlow may wait for any task
    of the cluster in any call of the chief, even one that adds two local
    numbers.

    *Hanging calls.* A call that needs a parameter server fails when that
    server is lost: TensorFlow cancels the parts of the call that run on other
    tasks. If one part fails while the next is being sent, that next part is
    never cancelled (`EagerClusterFunctionLibraryRuntime::Run` registers the
    cancellation before there is a request to cancel; TensorFlow 2.20, 2.21).
    The call then hangs forever, although every task is healthy. Once the
    parameter server is back, a call from before the loss fails, hangs, or
    already has what it needed. The last two look the same from outside, and a
    function in flight may run again after a loss anyway, so such a call counts
    as hanging.

    *Cancelled calls of the chief.* The same happens to calls that the chief's
    own threads make. Each of them is known to be cancelled, and so to fail.

    Attributes:
        hanging_seconds: How long calls have to fail by themselves.

    Not thread-safe.
    """

    def __init__(
        self,
        patience_seconds: float,
        *,
        max_silences: int = 3,
        hanging_seconds: float = 5.0,
    ) -> None:
        """Creates the detector.

        Args:
            patience_seconds: How long a closure may run before the tasks that
                it may wait for are probed, and the interval between two
                probes of tasks that nothing is known to wait for.
            max_silences: Number of unanswered probes in a row after which a
                task is given up.
            hanging_seconds: How long calls have to fail by themselves after a
                parameter server is back, or after they were cancelled.
        """
        self._patience_seconds = patience_seconds
        self._max_silences = max_silences
        self.hanging_seconds = hanging_seconds
        self._silences: dict[Hashable, int] = {}
        self._next_roll_call: float | None = None
        self._restored: collections.deque[Restored] = collections.deque()
        # When each cancelled call was first seen.
        self._cancelled: dict[Hashable, float] = {}

    def overdue(
        self, busy_since: Mapping[int, float | None], now: float
    ) -> tuple[int, ...]:
        """Returns the workers whose closure runs longer than usual.

        Args:
            busy_since: For each worker index, when its longest-running
                closure began; None if it is idle.
            now: The time.

        Returns:
            Worker indices, ascending.
        """
        return tuple(
            worker_index
            for worker_index, since in sorted(busy_since.items())
            if since is not None and now - since >= self._patience_seconds
        )

    def is_roll_call_due(self, now: float) -> bool:
        """Returns whether to probe also tasks that nothing seems to wait for.

        Returns:
            True once every `patience_seconds`.
        """
        is_due = self._next_roll_call is not None and (
            now >= self._next_roll_call
        )
        if is_due or self._next_roll_call is None:
            self._next_roll_call = now + self._patience_seconds
        return is_due

    def is_suspect(self, task: Hashable) -> bool:
        """Returns whether the task did not answer its last probe."""
        return task in self._silences

    def answered(self, task: Hashable) -> None:
        """Records that a task answered."""
        self._silences.pop(task, None)

    def silent(self, task: Hashable) -> bool:
        """Records that a task did not answer.

        Returns:
            Whether to give the task up now.
        """
        silences = self._silences.pop(task, 0) + 1
        if silences >= self._max_silences:
            return True
        self._silences[task] = silences
        return False

    def restored(self, parameter_servers: Collection[int], now: float) -> None:
        """Records that parameter servers are back.

        Args:
            parameter_servers: Their indices.
            now: The time. No call has begun since they were restored.
        """
        if parameter_servers:
            self._restored.append(Restored(parameter_servers, now))

    def due_for_hanging_calls(self, now: float) -> Iterator[Restored]:
        """Yields the restorations after which to look for hanging calls.

        Yields:
            Each restoration once, `hanging_seconds` after it.
        """
        while self._restored and (
            now - self._restored[0].at >= self.hanging_seconds
        ):
            yield self._restored.popleft()

    def due_cancelled_calls(
        self, calls: Collection[Hashable], now: float
    ) -> int:
        """Returns the number of calls that have ignored their cancellation.

        Args:
            calls: A key of each call that was cancelled and has not ended.
            now: The time.

        Returns:
            Each call counts once, `hanging_seconds` after it was first seen.
        """
        earlier = self._cancelled
        self._cancelled = {call: earlier.get(call, now) for call in calls}
        due = [
            call
            for call, since in self._cancelled.items()
            if now - since >= self.hanging_seconds
        ]
        for call in due:
            self._cancelled[call] = math.inf
        return len(due)

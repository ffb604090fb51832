"""Calls that may hang, made on other threads and awaited with a deadline."""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from typing import Generic
from typing import TypeVar

_MAX_THREADS = 64

Item = TypeVar("Item", bound=Hashable)
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class Outcome(Generic[Value]):
    """Outcome of one call.

    Attributes:
        value: The return value; None unless `error` is None.
        error: The exception; a TimeoutError if the call had not ended, or not
            even begun, by the deadline.
    """

    value: Value | None = None
    error: BaseException | None = None


def call_all(
    function: Callable[[Item], Value],
    items: Iterable[Item],
    timeout_seconds: float,
) -> dict[Item, Outcome[Value]]:
    """Calls `function` with every item at the same time.

    A call that has not ended by the deadline is abandoned: its thread, a
    daemon, goes on until the call returns.

    Args:
        function: Called on other threads, once for each item.
        items: The arguments of the calls.
        timeout_seconds: How long to wait for all calls together.

    Returns:
        The outcome for each item, in the order of the items.

    Threading: safe from several threads, also while the interpreter exits.
    """
    todo = collections.deque(items)
    outcomes: dict[Item, Outcome[Value]] = {}
    names = list(todo)
    given_up = threading.Event()

    def work() -> None:
        while not given_up.is_set():
            try:
                item = todo.popleft()
            except IndexError:
                return
            try:
                outcomes[item] = Outcome(value=function(item))
            except BaseException as error:
                outcomes[item] = Outcome(error=error)

    deadline = time.monotonic() + timeout_seconds
    threads = []
    for number in range(min(len(names), _MAX_THREADS)):
        thread = threading.Thread(
            target=work, name=f"tfps-call-{number}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # Python 3.12 and later start no thread while they shut down.
            work()
            break
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    given_up.set()
    late = TimeoutError(f"it did not end within {timeout_seconds:g} s")
    return {name: outcomes.get(name, Outcome(error=late)) for name in names}


def call(function: Callable[[], Value], timeout_seconds: float) -> Value | None:
    """Calls `function` on another thread, and waits with a deadline.

    Returns:
        The return value of the function.

    Raises:
        TimeoutError: If the call has not ended by the deadline; it goes on.
        BaseException: The exception of the function.
    """
    (outcome,) = call_all(
        lambda _: function(), [None], timeout_seconds
    ).values()
    if outcome.error is not None:
        raise outcome.error
    return outcome.value


class SerialCalls:
    """Calls that may hang, and never run at the same time.

    Guarantees: a call that was given up after its timeout keeps its turn until
    it has really ended; no other call begins before.
    Guarded by `_turn`, which the call's own thread releases: `_since`. It is
    read without the lock, for the error message.
    Never call while holding it: `call` and `wait`.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._since = 0.0

    def wait(self, timeout_seconds: float) -> None:
        """Waits until no call runs.

        Raises:
            TimeoutError: If one still runs after the timeout.
        """
        self._take_turn(timeout_seconds)
        self._turn.release()

    def call(
        self,
        function: Callable[[], object],
        timeout_seconds: float,
        *,
        wait_seconds: float,
    ) -> None:
        """Calls `function` when no other call runs, and waits for its end.

        Args:
            function: Called on another thread.
            timeout_seconds: How long to wait for its end.
            wait_seconds: How long to wait for an earlier call to end.

        Raises:
            TimeoutError: If the function was not called because an earlier
                call has not ended, or if it was called and goes on.
            BaseException: The exception of the function.
        """
        self._take_turn(wait_seconds)
        self._since = time.monotonic()
        # Acquired by the call when it begins, or by its caller to give the
        # call up before that.
        claim = threading.Lock()

        def run() -> None:
            if not claim.acquire(blocking=False):
                return
            try:
                function()
            finally:
                self._turn.release()

        try:
            call(run, timeout_seconds)
        except BaseException:
            if claim.acquire(blocking=False):
                self._turn.release()
            raise

    def _take_turn(self, timeout_seconds: float) -> None:
        if not self._turn.acquire(timeout=timeout_seconds):
            raise TimeoutError(
                "an earlier one, begun "
                f"{time.monotonic() - self._since:.0f} s ago, has not ended"
            )

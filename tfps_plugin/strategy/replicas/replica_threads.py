"""Threads that trace the replicas of a step, one at a time."""

import contextlib
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tfps_plugin import errors

# A replica's thread gets as long as its code needs: what it waits for is the
# same process, which traces. Seconds between two looks whether it lives.
_LOOK_SECONDS = 5.0


class _Meeting(NamedTuple):
    """Something that a replica has come to, and all do together."""

    what: str
    argument: Any
    function: Callable[[Sequence[Any]], Sequence[Any]]


class _Stopped(BaseException):
    """Ends a replica's thread because another one has failed.

    Not an `Exception`: the code of the step must not handle it.
    """


class ReplicaThreads:
    """Traces the replicas of a step in turn, each on a thread of its own.

    The replicas run the same code. Where one of them needs what the others
    have, all of them *meet*: each waits until the last one has come, and the
    calling thread does what they came for. So does
    `tf.distribute.MirroredStrategy`. One thread runs at a time, and replicas
    take turns in their order, so that a trace is the same every time.

    Threading: `run` returns when all threads have ended. `meet` is for the
    threads that it starts.
    """

    def __init__(
        self, turn: Callable[[int], contextlib.AbstractContextManager[Any]]
    ) -> None:
        """Starts no thread yet.

        Args:
            turn: Returns the context in which the calling thread waits while
                a replica, of the given index, traces.
        """
        self._turn = turn
        self._threads: list[_ReplicaThread] = []

    def run(self, replicas: Sequence[Callable[[], Any]]) -> list[Any]:
        """Runs all replicas to their ends.

        Args:
            replicas: A function for each replica.

        Returns:
            Their results, in their order.

        Raises:
            UnsupportedError: If replicas do not come to the same meetings.
        """
        self._threads = [
            _ReplicaThread(index, function)
            for index, function in enumerate(replicas)
        ]
        try:
            answers: Sequence[Any] = [None] * len(replicas)
            while True:
                meetings = []
                for thread, answer in zip(self._threads, answers, strict=True):
                    with self._turn(thread.index):
                        meetings.append(thread.go_on(answer))
                if all(meeting is None for meeting in meetings):
                    return [thread.result for thread in self._threads]
                together = _require_same(meetings)
                answers = together[0].function(
                    [meeting.argument for meeting in together]
                )
        finally:
            for thread in self._threads:
                thread.stop()

    def meet(
        self,
        index: int,
        what: str,
        argument: Any,
        function: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> Any:
        """Does something for all replicas; see `Replica.meet`.

        Args:
            index: Index of the replica whose thread calls.
            what: As for `Replica.meet`; so are the others.
            argument: Likewise.
            function: Likewise.
        """
        return self._threads[index].pause(_Meeting(what, argument, function))


class _ReplicaThread:
    """Thread of one replica. It runs between `go_on` and the next pause."""

    def __init__(self, index: int, function: Callable[[], Any]) -> None:
        self.index = index
        self.result: Any = None
        self._function = function
        self._thread = threading.Thread(
            target=self._run, name=f"tfps-replica-{index}", daemon=True
        )
        self._may_run = threading.Semaphore(0)
        self._has_paused = threading.Semaphore(0)
        self._answer: Any = None
        self._meeting: _Meeting | None = None
        self._error: BaseException | None = None
        self._is_stopped = False

    # On the calling thread.

    def go_on(self, answer: Any) -> _Meeting | None:
        """Lets the replica run until it comes to a meeting, or ends.

        Returns:
            The meeting; None at its end.
        """
        self._answer = answer
        if not self._thread.is_alive():
            self._thread.start()
        self._may_run.release()
        while not self._has_paused.acquire(timeout=_LOOK_SECONDS):
            if not self._thread.is_alive():
                raise errors.InternalError(
                    f"The thread of replica {self.index} has vanished while it "
                    "traced a step. Please report this."
                )
        if self._error is not None:
            raise self._error
        return self._meeting

    def stop(self) -> None:
        """Ends the thread, also in the middle of the step."""
        self._is_stopped = True
        self._may_run.release()
        if self._thread.ident is not None:
            # Without a deadline: code that traces can be left, but not ended,
            # and it must not go on beside what follows.
            self._thread.join()

    # On the replica's thread.

    def pause(self, meeting: _Meeting) -> Any:
        """Waits for the others at a meeting; returns what comes of it."""
        if self._is_stopped:
            # Code that handles the end of the step may come here again.
            raise _Stopped
        self._meeting = meeting
        self._has_paused.release()
        self._may_run.acquire()
        if self._is_stopped:
            raise _Stopped
        self._meeting = None
        return self._answer

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            if not self._is_stopped:
                self.result = self._function()
        except _Stopped:
            pass
        except BaseException as error:
            self._error = error
        self._meeting = None
        self._has_paused.release()


def _require_same(meetings: Sequence[_Meeting | None]) -> list[_Meeting]:
    """Returns meetings, if all replicas have come to the same one.

    Raises:
        UnsupportedError: If they have not.
    """
    found = ["its end" if each is None else each.what for each in meetings]
    if len(set(found)) > 1:
        shown = ", ".join(
            f"replica {index} {what}" for index, what in enumerate(found)
        )
        raise errors.UnsupportedError(
            "The replicas of a worker trace the same step, and meet where one "
            "needs what the others have. Expected the same lookups, "
            "assignments, reductions and updates in all of them, in the same "
            f"order. Received: after the same steps, {shown} came next. Do not "
            "let Python code depend on the index of the replica."
        )
    return [each for each in meetings if each is not None]

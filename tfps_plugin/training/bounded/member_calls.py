"""Steps that members of a span have made, by their calls. Pure."""

import collections
import threading


class MemberCalls:
    """Calls of the members of one span.

    Parameter servers know each step. These numbers count if one is lost, and
    its knowledge with it.

    Guarantees: calls of another span change nothing here, even if they end
    late.
    Guarded by `_lock`: the numbers.
    """

    def __init__(self) -> None:
        """Begins without calls."""
        self._lock = threading.Lock()
        self._done: collections.Counter[int] = collections.Counter()
        self._in_flight: collections.Counter[int] = collections.Counter()
        self._left: set[int] = set()

    def begins(self, worker: int, num_steps: int) -> bool:
        """Records that a member begins a call.

        Args:
            worker: Index of the member.
            num_steps: Number of steps of the call.

        Returns:
            Whether it may: a member that was given up may still run.
        """
        with self._lock:
            if worker in self._left:
                return False
            self._in_flight[worker] = num_steps
            return True

    def leaves(self, worker: int) -> None:
        """Records that a member begins no more calls."""
        with self._lock:
            self._left.add(worker)

    def has_ended(self, worker: int, num_done: int) -> None:
        """Records that the call of a member came to its end, without an error.

        Args:
            worker: Index of the member.
            num_done: Number of steps that it has made.
        """
        with self._lock:
            self._in_flight[worker] = 0
            self._done[worker] += num_done

    def num_done(self, worker: int) -> int:
        """Returns the number of steps in calls that came to their end."""
        with self._lock:
            return self._done[worker]

    def num_in_flight(self, worker: int) -> int:
        """Returns the number of steps of a call that did not; 0: none."""
        with self._lock:
            return self._in_flight[worker]

    def num_in_doubt(self, worker: int, clock: int | None) -> int:
        """Returns how many steps may have been applied, and are made again.

        Args:
            worker: Index of the member, which makes no step any more.
            clock: Number of steps that all parameter servers know of; None:
                they do not tell.
        """
        with self._lock:
            in_flight, done = self._in_flight[worker], self._done[worker]
        if clock is None:
            return in_flight
        # Some parameter servers may have applied the step that comes next.
        return int(done <= clock < done + in_flight)

"""Workers that sit out synchronous steps, because theirs fail. Pure.

A worker that answers, but does not reach a parameter server, holds up the
others until its call fails. If it were a member of every span, it would do so
again and again.
"""

import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence

# A worker sits out so many times as long as its failure has held up others, so
# that one that never recovers costs them at most a tenth of their time.
_FACTOR = 10.0
# A worker that fails at once costs the others nothing, and may be about to
# connect to a parameter server that is back.
_LEAST_SECONDS_HELD_UP = 5.0
_MOST_SECONDS = 600.0


class Exclusions:
    """Decides which workers sit out, and for how long.

    Threading: only the thread that begins spans uses it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins with no worker that sits out.

        Args:
            clock: Returns the time in seconds.
        """
        self._clock = clock
        self._until: dict[int, float] = {}

    def exclude(
        self, workers: Collection[int], held_up_seconds: float
    ) -> float:
        """Makes workers sit out.

        Args:
            workers: Indices of workers whose calls have failed.
            held_up_seconds: How long they may have held up the others.

        Returns:
            How long they sit out, in seconds; 0.0: they do not.
        """
        if held_up_seconds < _LEAST_SECONDS_HELD_UP:
            return 0.0
        seconds = min(_MOST_SECONDS, _FACTOR * held_up_seconds)
        for worker in workers:
            self._until[worker] = self._clock() + seconds
        return seconds

    def members(self, present: Sequence[int]) -> list[int]:
        """Returns the workers that take part, in their order.

        Args:
            present: Indices of the workers that answer. If all of them sit
                out, all take part.
        """
        now = self._clock()
        self._until = {
            worker: until
            for worker, until in self._until.items()
            if until > now
        }
        members = [each for each in present if each not in self._until]
        return members or list(present)

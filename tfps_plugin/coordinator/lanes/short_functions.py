"""Whether what lanes run is over before another lane would have begun.

Pure: no lock, no clock; the caller says what time it is, in seconds of any
steady clock.
"""

# To wake a thread takes about as long. What a worker is asked to do takes
# several times that.
_SHORT_SECONDS = 100e-6
# What takes longer is not short, even if others ran beside it: some of many do
# not have to wait for Python's lock.
_MAYBE_SHORT_SECONDS = 2e-3
_NUM_LOOKED_BACK_AT = 32
# A thread has to wait for others now and then, in the middle of anything.
_MOST_EXCEPTIONS = 16
_ALL = (1 << _NUM_LOOKED_BACK_AT) - 1
# A trial costs some milliseconds, if they turn out to be long.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class ShortFunctions:
    """Whether functions are taken for short ones, which one lane is to run.

    Many threads that share Python's lock are slower than one, unless they wait
    for something else most of the time, as they do for workers. How long a
    function takes beside many others does not tell which it is, unless it takes
    very long; so it is tried at times: they are taken for short until some turn
    out not to be.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """Takes them for short, to begin with."""
        self._are_short = True
        self._since = 0.0
        # A bit for each of the latest functions; set for one that was long.
        self._was_long = 0
        self._num_observed = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._next_trial = 0.0

    @property
    def are_short(self) -> bool:
        """Whether they are taken for short now."""
        return self._are_short

    def observe(self, began_at: float, now: float) -> None:
        """Notes that a function has ended.

        Args:
            began_at: When it began.
            now: The time.
        """
        if not self._are_short:
            if (
                now >= self._next_trial
                and now - began_at < _MAYBE_SHORT_SECONDS
            ):
                self._are_short = True
                self._since = now
                self._was_long = self._num_observed = 0
            return
        if began_at < self._since:
            # Many ran beside it.
            return
        is_long = now - began_at > _SHORT_SECONDS
        self._was_long = (self._was_long << 1 | is_long) & _ALL
        self._num_observed += 1
        if self._was_long.bit_count() > _MOST_EXCEPTIONS:
            self.found_long(now)

    def found_long(self, now: float) -> None:
        """Takes them for long, until it is tried again."""
        if self._num_observed > _NUM_LOOKED_BACK_AT:
            # They were short until now.
            self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._are_short = False
        self._next_trial = now + self._pause_seconds
        self._pause_seconds = min(
            2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS
        )

"""Detection of functions too short to gain from a second thread.

Pure: no lock, no clock; the caller passes the time, in seconds of any steady
clock.
"""

# Waking a thread takes about as long. A call to a worker takes several times
# that.
_SHORT_SECONDS = 100e-6
# A longer function is not short, even if others ran beside it: some of many do
# not have to wait for the global interpreter lock (GIL).
_MAYBE_SHORT_SECONDS = 2e-3
_NUM_LOOKED_BACK_AT = 32
# Any thread has to wait for others now and then.
_MOST_EXCEPTIONS = 16
_ALL = (1 << _NUM_LOOKED_BACK_AT) - 1
# A trial costs some milliseconds if the functions turn out to be long.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class ShortFunctions:
    """Decides whether functions are so short that one lane should run all.

    Several threads that share the global interpreter lock (GIL) are slower
    than one, unless they mostly wait for something else, such as workers. The
    duration of a function beside many others does not tell the two cases
    apart, unless it is very long. So there are trials: functions count as
    short until some of them are not.

    Not thread-safe.
    """

    def __init__(self) -> None:
        """Creates the detector; functions count as short at first."""
        self._are_short = True
        self._since = 0.0
        # A bit for each of the latest functions; set for one that was long.
        self._was_long = 0
        self._num_observed = 0
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._next_trial = 0.0

    @property
    def are_short(self) -> bool:
        """True while functions count as short."""
        return self._are_short

    def observe(self, began_at: float, now: float) -> None:
        """Records that a function ended.

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
            # It began before the trial: others ran beside it.
            return
        is_long = now - began_at > _SHORT_SECONDS
        self._was_long = (self._was_long << 1 | is_long) & _ALL
        self._num_observed += 1
        if self._was_long.bit_count() > _MOST_EXCEPTIONS:
            self.found_long(now)

    def found_long(self, now: float) -> None:
        """Counts functions as long until the next trial."""
        if self._num_observed > _NUM_LOOKED_BACK_AT:
            # They were short until now.
            self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._are_short = False
        self._next_trial = now + self._pause_seconds
        self._pause_seconds = min(
            2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS
        )

"""Whether the training loss falls fast, or jumps. Pure: no TensorFlow."""

import collections
import itertools
import math
import statistics

# Spans of training double in length: losses fall ever more slowly, and of a
# longer span chance moves the mean less.
_STEPS_OF_FIRST_SPAN = 64
# Optimizers with moving averages are not themselves before.
_STEPS_AT_LEAST = 1024
# Where nobody reports a loss.
_STEPS_WITHOUT_LOSS = 2048
# A loss that never settles must not keep a long job slow.
_STEPS_AT_MOST = 16384
# From one span to the next.
_SETTLED_PART = 0.02
# Whoever begins again a second time has to settle for longer, from then on
# each time for so many times as long, and no longer than the last.
_STEPS_AT_LEAST_AFTER_SECOND = 32768
_TIMES_AS_LONG = 4
_MOST_STEPS_AT_LEAST = 2**21
# Jumps are looked for in short spans. How many are remembered, how many have
# to be known, and how many of the latest are the usual.
_STEPS_OF_SHORT_SPAN = 128
_SPANS_REMEMBERED = 32
_LEAST_SPANS = 8
_SPANS_OF_THE_USUAL = 8
# How much more than usual is a jump, how many times the spread of short spans,
# and how many of them in a row.
_JUMP_PART = 0.15
_JUMP_SPREADS = 5.0
_SPANS_OF_A_JUMP = 2
# The median of what differs between two normal numbers, in deviations.
_MEDIAN_OF_DIFFERENCES = 0.6745 * math.sqrt(2)


class LossCourse:
    """The training loss, from one span of steps to the next, twice as long one.

    It falls fast until its mean over a span is within a fiftieth of the mean
    over the span before: then it has settled. One that rises by more has not.
    Later on it jumps when its means over two short spans in a row are far above
    the usual, in parts of the usual and by how much such means differ.

    Threading: for one thread at a time.
    """

    def __init__(self) -> None:
        """Knows nothing yet: it falls fast."""
        self._steps = 0
        self._steps_at_least = _STEPS_AT_LEAST
        self._num_begun_again = 0
        self._end_of_span = _STEPS_OF_FIRST_SPAN
        self._before: float | None = None
        self._span = _Mean()
        self._falls_fast = True
        self._has_jumped = False
        self._short_spans = _ShortSpans()
        # Of each lane, how many steps were made since its loss was known.
        self._unknown: dict[int, int] = {}

    @property
    def falls_fast(self) -> bool:
        """Whether it does; not again before `begin_again`."""
        return self._falls_fast

    @property
    def has_jumped(self) -> bool:
        """Whether it has with the call that was observed last."""
        return self._has_jumped

    @property
    def steps(self) -> int:
        """How many steps were made since it began."""
        return self._steps

    @property
    def steps_at_least(self) -> int:
        """How many steps it takes at least until it has settled."""
        return self._steps_at_least

    def begin_again(self) -> None:
        """Has it fall fast until it settles once more.

        From the second time on, that takes much longer each time.
        """
        self._num_begun_again += 1
        if self._num_begun_again > 1:
            self._steps_at_least = min(
                max(
                    _STEPS_AT_LEAST_AFTER_SECOND,
                    _TIMES_AS_LONG * self._steps_at_least,
                ),
                _MOST_STEPS_AT_LEAST,
            )
        self._steps = 0
        self._end_of_span = _STEPS_OF_FIRST_SPAN
        self._before = None
        self._span = _Mean()
        self._falls_fast = True
        self._has_jumped = False
        self._short_spans = _ShortSpans()

    def begin_epoch(self) -> None:
        """Notes that what was not reported yet never will be."""
        self._unknown.clear()

    def observe(self, lane: int, num_steps: int, mean: float | None) -> None:
        """Notes that a call has ended.

        Args:
            lane: Who made it.
            num_steps: How many steps it made.
            mean: The mean loss of this lane's steps since it was last known, or
                of some of them; None, or not finite: nobody knows.
        """
        unknown = self._unknown.get(lane, 0) + num_steps
        if mean is not None and math.isfinite(mean):
            self._span.add(mean, unknown)
            self._short_spans.add(mean, unknown)
            unknown = 0
        self._unknown[lane] = unknown
        self._steps += num_steps
        jumps = self._short_spans.advance(num_steps)
        self._has_jumped = jumps and not self._falls_fast
        while self._falls_fast and self._steps >= self._end_of_span:
            self._close_span()

    def _close_span(self) -> None:
        mean = self._span.value
        self._span = _Mean()
        if self._end_of_span >= self._steps_at_least:
            self._falls_fast = not self._has_settled(mean)
        # Of a span without any, nothing is known: the one before counts on.
        if mean is not None:
            self._before = mean
        self._end_of_span += self._end_of_span

    def _has_settled(self, mean: float | None) -> bool:
        if self._end_of_span >= _STEPS_AT_MOST:
            return True
        if mean is None or self._before is None:
            return self._end_of_span >= _STEPS_WITHOUT_LOSS
        change = abs(mean - self._before)
        return change <= _SETTLED_PART * abs(self._before)


class _Mean:
    """A mean of numbers with weights."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0

    def add(self, number: float, weight: int) -> None:
        self._sum += number * weight
        self._weight += weight

    @property
    def value(self) -> float | None:
        """None if there is no number."""
        return self._sum / self._weight if self._weight else None


class _ShortSpans:
    """The means of the latest short spans, and whether they jump."""

    def __init__(self) -> None:
        self._means: collections.deque[float] = collections.deque(
            maxlen=_SPANS_REMEMBERED
        )
        self._high: list[float] = []
        self._mean = _Mean()
        self._steps = 0

    def add(self, mean: float, num_steps: int) -> None:
        """Takes the mean loss of some steps."""
        self._mean.add(mean, num_steps)

    def advance(self, num_steps: int) -> bool:
        """Whether it jumps with so many steps more."""
        self._steps += num_steps
        if self._steps < _STEPS_OF_SHORT_SPAN:
            return False
        # A call may be longer than one: nobody knows more than their mean.
        self._steps %= _STEPS_OF_SHORT_SPAN
        mean, self._mean = self._mean.value, _Mean()
        return mean is not None and self._jumps(mean)

    def _jumps(self, mean: float) -> bool:
        if not self._is_far_above(mean):
            # What was high alone belongs to how much means differ.
            self._means.extend((*self._high, mean))
            self._high = []
            return False
        self._high.append(mean)
        if len(self._high) < _SPANS_OF_A_JUMP:
            return False
        # It is seen once; then it is the usual.
        self._means.clear()
        self._means.extend(self._high)
        self._high = []
        return True

    def _is_far_above(self, mean: float) -> bool:
        means = [*self._means]
        if len(means) < _LEAST_SPANS:
            return False
        usual = statistics.median(means[-_SPANS_OF_THE_USUAL:])
        # From one to the next: a slow fall is no spread.
        differences = [abs(b - a) for a, b in itertools.pairwise(means)]
        spread = statistics.median(differences) / _MEDIAN_OF_DIFFERENCES
        # Near zero and below, parts of the usual say nothing.
        part = _JUMP_PART * max(usual, 0.0)
        return mean - usual > max(part, _JUMP_SPREADS * spread)

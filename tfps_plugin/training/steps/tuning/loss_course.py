"""Course of the training loss: falls fast, or jumps. Pure: no TensorFlow."""

import collections
import itertools
import math
import statistics

# Spans of training double in length: losses fall ever more slowly, and the
# mean of a longer span is less noisy.
_STEPS_OF_FIRST_SPAN = 64
# Optimizers with moving averages need as many steps to warm up.
_STEPS_AT_LEAST = 1024
# Used if no losses are reported.
_STEPS_WITHOUT_LOSS = 2048
# A loss that never settles must not keep a long job slow.
_STEPS_AT_MOST = 16384
# Largest relative change from one span to the next.
_SETTLED_PART = 0.02
# From the second time that it begins again, settling takes longer: first as
# many steps, then this factor more each time, up to a limit.
_STEPS_AT_LEAST_AFTER_SECOND = 32768
_TIMES_AS_LONG = 4
_MOST_STEPS_AT_LEAST = 2**21
# Jumps are detected in short spans: their length, the number remembered, the
# number required, and the number of latest spans that define the usual loss.
_STEPS_OF_SHORT_SPAN = 128
_SPANS_REMEMBERED = 32
_LEAST_SPANS = 8
_SPANS_OF_THE_USUAL = 8
# Size of a jump relative to the usual loss and to the spread of short spans,
# and the number of high spans in a row.
_JUMP_PART = 0.15
_JUMP_SPREADS = 5.0
_SPANS_OF_A_JUMP = 2
# Median of the absolute difference of two normal numbers, in deviations.
_MEDIAN_OF_DIFFERENCES = 0.6745 * math.sqrt(2)


class LossCourse:
    """Course of the training loss, over spans of steps that double in length.

    The loss falls fast until its mean over a span is within 2 % of the mean
    over the span before: then it has settled. A loss that rises by more has
    not. Later it jumps if its means over two short spans in a row are far above
    the usual loss, relative to that loss and to the spread of such means.

    Threading: for one thread at a time.
    """

    def __init__(self) -> None:
        """Starts without losses: the loss counts as falling fast."""
        self._steps = 0
        self._steps_at_least = _STEPS_AT_LEAST
        self._num_begun_again = 0
        self._end_of_span = _STEPS_OF_FIRST_SPAN
        self._before: float | None = None
        self._span = _Mean()
        self._falls_fast = True
        self._has_jumped = False
        self._short_spans = _ShortSpans()
        # For each lane, the number of steps since its loss was last known.
        self._unknown: dict[int, int] = {}

    @property
    def falls_fast(self) -> bool:
        """True until the loss settles; then False until `begin_again`."""
        return self._falls_fast

    @property
    def has_jumped(self) -> bool:
        """True if the loss jumped with the last observed call."""
        return self._has_jumped

    @property
    def steps(self) -> int:
        """Number of steps since it began."""
        return self._steps

    @property
    def steps_at_least(self) -> int:
        """Smallest number of steps until the loss can settle."""
        return self._steps_at_least

    def begin_again(self) -> None:
        """Starts over: the loss falls fast until it settles once more.

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
        """Records that missing reports will never arrive."""
        self._unknown.clear()

    def observe(self, lane: int, num_steps: int, mean: float | None) -> None:
        """Records the end of a call.

        Args:
            lane: Number of its lane.
            num_steps: Number of steps of the call.
            mean: The mean loss of this lane's steps since it was last known, or
                of some of them; None, or not finite: unknown.
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
        # A span without losses is skipped: the one before stays.
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
    """A weighted mean of numbers."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._weight = 0

    def add(self, number: float, weight: int) -> None:
        self._sum += number * weight
        self._weight += weight

    @property
    def value(self) -> float | None:
        """The mean; None if there are no numbers."""
        return self._sum / self._weight if self._weight else None


class _ShortSpans:
    """Means of the latest short spans; detects jumps."""

    def __init__(self) -> None:
        self._means: collections.deque[float] = collections.deque(
            maxlen=_SPANS_REMEMBERED
        )
        self._high: list[float] = []
        self._mean = _Mean()
        self._steps = 0

    def add(self, mean: float, num_steps: int) -> None:
        """Adds the mean loss of some steps."""
        self._mean.add(mean, num_steps)

    def advance(self, num_steps: int) -> bool:
        """Advances by some steps; returns whether the loss jumps with them."""
        self._steps += num_steps
        if self._steps < _STEPS_OF_SHORT_SPAN:
            return False
        # A call may span several; only its mean is known.
        self._steps %= _STEPS_OF_SHORT_SPAN
        mean, self._mean = self._mean.value, _Mean()
        return mean is not None and self._jumps(mean)

    def _jumps(self, mean: float) -> bool:
        if not self._is_far_above(mean):
            # A single high mean is part of the spread.
            self._means.extend((*self._high, mean))
            self._high = []
            return False
        self._high.append(mean)
        if len(self._high) < _SPANS_OF_A_JUMP:
            return False
        # A jump is reported once; then it defines the usual loss.
        self._means.clear()
        self._means.extend(self._high)
        self._high = []
        return True

    def _is_far_above(self, mean: float) -> bool:
        means = [*self._means]
        if len(means) < _LEAST_SPANS:
            return False
        usual = statistics.median(means[-_SPANS_OF_THE_USUAL:])
        # Between neighbors: a slow fall does not count as spread.
        differences = [abs(b - a) for a, b in itertools.pairwise(means)]
        spread = statistics.median(differences) / _MEDIAN_OF_DIFFERENCES
        # Near zero and below, the relative size means nothing.
        part = _JUMP_PART * max(usual, 0.0)
        return mean - usual > max(part, _JUMP_SPREADS * spread)

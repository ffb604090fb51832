"""Whether the training loss falls fast, or jumps. Pure: no TensorFlow."""

import math

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
# Of a loss that has settled: how long spans are then, how much more than usual
# is a jump, and how much of the usual each span makes.
_STEPS_OF_LATER_SPAN = 128
_JUMP_PART = 0.15
_PART_OF_THE_USUAL = 0.1


class LossCourse:
    """The training loss, from one span of steps to the next, twice as long one.

    It falls fast until its mean over a span is within a fiftieth of the mean
    over the span before: then it has settled. One that rises by more has not.
    Later on it jumps when its mean over a short span is far above the usual.

    Threading: for one thread at a time.
    """

    def __init__(self) -> None:
        """Knows nothing yet: it falls fast."""
        self._steps = 0
        self._end_of_span = _STEPS_OF_FIRST_SPAN
        self._before: float | None = None
        self._sum = 0.0
        self._weight = 0
        self._falls_fast = True
        self._has_jumped = False
        # By lane: its steps of this epoch; of those whose losses are known,
        # their number and the sum of losses.
        self._lanes: dict[int, tuple[int, int, float]] = {}

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

    def begin_again(self) -> None:
        """Has it fall fast until it settles once more."""
        self._steps = 0
        self._end_of_span = _STEPS_OF_FIRST_SPAN
        self._before = None
        self._sum, self._weight = 0.0, 0
        self._falls_fast = True
        self._has_jumped = False

    def begin_epoch(self) -> None:
        """Notes that reported means begin anew."""
        self._lanes.clear()

    def observe(self, lane: int, num_steps: int, mean: float | None) -> None:
        """Notes that a call has ended.

        Args:
            lane: Who made it.
            num_steps: How many steps it made.
            mean: The mean loss of all steps of this lane in this epoch; None,
                or not finite: nobody knows.
        """
        steps, known, total = self._lanes.get(lane, (0, 0, 0.0))
        steps += num_steps
        if mean is not None and math.isfinite(mean) and steps > known:
            self._sum += mean * steps - total
            self._weight += steps - known
            known, total = steps, mean * steps
        self._lanes[lane] = steps, known, total
        self._steps += num_steps
        self._has_jumped = False
        while self._steps >= self._end_of_span:
            self._close_span()

    def _close_span(self) -> None:
        mean = self._sum / self._weight if self._weight else None
        self._sum, self._weight = 0.0, 0
        if not self._falls_fast:
            self._end_of_span += _STEPS_OF_LATER_SPAN
            self._compare_with_usual(mean)
            return
        if self._end_of_span >= _STEPS_AT_LEAST:
            self._falls_fast = not self._has_settled(mean)
        # Of a span without any, nothing is known: the one before counts on.
        if mean is not None:
            self._before = mean
        self._end_of_span += (
            self._end_of_span if self._falls_fast else _STEPS_OF_LATER_SPAN
        )

    def _compare_with_usual(self, mean: float | None) -> None:
        if mean is None:
            return
        usual = mean if self._before is None else self._before
        self._has_jumped |= mean - usual > _JUMP_PART * abs(usual)
        self._before = usual + _PART_OF_THE_USUAL * (mean - usual)

    def _has_settled(self, mean: float | None) -> bool:
        if self._end_of_span >= _STEPS_AT_MOST:
            return True
        if mean is None or self._before is None:
            return self._end_of_span >= _STEPS_WITHOUT_LOSS
        change = abs(mean - self._before)
        return change <= _SETTLED_PART * abs(self._before)

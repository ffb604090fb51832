"""Tests of the course of the training loss."""

import itertools
import math
import random
from collections.abc import Callable

import pytest

from tfps_plugin.training.steps.tuning.loss_course import LossCourse

_MOST_STEPS = 100_000


def _steps_until_settled(
    loss: Callable[[int], float | None],
    *,
    num_lanes: int = 2,
    steps_of_call: int = 10,
    steps_of_epoch: int = 1_000_000,
    reports: Callable[[int], bool] = lambda call: True,
) -> int:
    """Returns the number of steps while the loss falls fast.

    Lanes take turns; each reports the mean of its own steps since its last
    report.

    Args:
        loss: Loss of a step, by its number.
        num_lanes: Number of lanes.
        steps_of_call: Number of steps of a call.
        steps_of_epoch: Number of steps after which reports start over.
        reports: Whether a call's mean is known, by its number.
    """
    course = LossCourse()
    means: dict[int, tuple[int, float]] = {}
    step = 0
    for call in itertools.count():
        if not course.falls_fast or step > _MOST_STEPS:
            break
        if step % steps_of_epoch == 0:
            course.begin_epoch()
            means.clear()
        lane = call % num_lanes
        number, total = means.get(lane, (0, 0.0))
        is_known = reports(call)
        for _ in range(steps_of_call):
            value = loss(step)
            is_known = is_known and value is not None
            total += value or 0.0
            step += 1
        number += steps_of_call
        mean = total / number if is_known else None
        means[lane] = (0, 0.0) if is_known else (number, total)
        course.observe(lane, steps_of_call, mean)
    assert course.steps == step
    return step


@pytest.mark.parametrize(
    ("loss", "at_least", "at_most"),
    [
        # Level from the beginning: optimizers still build up their averages.
        (lambda step: 0.7, 1024, 1044),
        (lambda step: 0.5 + math.exp(-step / 20), 1024, 1044),
        (lambda step: 0.5 + math.exp(-step / 500), 4096, 8212),
        # Falls by a third each time that steps double, or by 1 %.
        (lambda step: (1 + step) ** -0.5, 16384, 16404),
        (lambda step: (1 + step) ** -0.02, 1024, 1044),
        # A rising loss is not settled, either.
        (lambda step: 1 + step / 100, 16384, 16404),
        (lambda step: -3.0, 1024, 1044),
        (lambda step: -math.log(2 + step), 2048, 16404),
        (lambda step: 0.0, 1024, 1044),
        # No losses are reported.
        (lambda step: None, 2048, 2068),
        (lambda step: math.nan, 2048, 2068),
    ],
)
@pytest.mark.parametrize("num_lanes", [1, 2, 9])
def test_so_long_it_falls_fast(
    loss: Callable[[int], float | None],
    at_least: int,
    at_most: int,
    num_lanes: int,
) -> None:
    steps = _steps_until_settled(loss, num_lanes=num_lanes)
    assert at_least <= steps <= at_most


@pytest.mark.parametrize("steps_of_epoch", [40, 100, 700])
@pytest.mark.parametrize("steps_of_call", [1, 10, 20])
def test_epochs_and_calls_of_any_length_tell_the_same(
    steps_of_epoch: int, steps_of_call: int
) -> None:
    steps = _steps_until_settled(
        lambda step: 0.5 + math.exp(-step / 200),
        steps_of_epoch=steps_of_epoch,
        steps_of_call=steps_of_call,
    )
    assert steps == pytest.approx(4096, abs=20)


def test_what_was_not_reported_is_in_the_next_mean() -> None:
    steps = _steps_until_settled(
        lambda step: 0.5 + math.exp(-step / 200),
        reports=lambda call: call % 5 == 0,
    )
    assert steps == pytest.approx(4096, abs=20)


def test_noise_of_batches_does_not_look_like_a_fall() -> None:
    for seed in range(100):
        source = random.Random(seed)
        steps = _steps_until_settled(
            lambda step, source=source: source.gauss(0.5, 0.15)  # type: ignore[misc]
        )
        assert steps <= 8212


def test_a_call_longer_than_a_span() -> None:
    course = LossCourse()
    course.observe(0, 300, 0.7)
    assert course.falls_fast
    course.observe(0, 10_000, 0.7)
    assert not course.falls_fast


def test_it_never_falls_fast_again() -> None:
    course = LossCourse()
    for _ in range(120):
        course.observe(0, 10, 1.0)
    assert not course.falls_fast
    for number in range(1000):
        course.observe(0, 10, 1.0 / (1 + number))
    assert not course.falls_fast


def _settled_at(loss: float) -> LossCourse:
    course = LossCourse()
    course.begin_epoch()
    while course.falls_fast:
        course.observe(0, 8, loss)
    course.begin_epoch()
    return course


def _jumps(course: LossCourse, losses: list[float]) -> list[int]:
    """Returns the indices of calls of 8 steps at which the loss jumps."""
    found = []
    for number, loss in enumerate(losses, start=1):
        course.observe(0, 8, loss)
        if course.has_jumped:
            found.append(number)
    return found


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_settled_loss_jumps_when_it_is_far_above_the_usual(
    sign: float,
) -> None:
    course = _settled_at(0.8 * sign)
    jumped = [0.8 * sign + 0.2] * 200
    # Two spans of 128 steps in a row. A jump is reported once.
    assert _jumps(course, [0.8 * sign] * 64 + jumped) == [96]
    assert not course.falls_fast


@pytest.mark.parametrize(
    "losses",
    [
        [0.8] * 200,
        # By a tenth at once, or by twice as much little by little.
        [0.8] * 64 + [0.88] * 64,
        [0.8 + 0.0002 * number for number in range(1000)],
        [0.8] * 64 + [0.1] * 64,
        # In a single span.
        [0.8] * 64 + [100.0] * 16 + [0.8] * 64,
        [math.nan] * 64,
    ],
)
def test_everything_else_is_no_jump(losses: list[float]) -> None:
    assert not _jumps(_settled_at(0.8), losses)


def test_noise_of_batches_is_no_jump() -> None:
    source = random.Random(5)
    # Means of 8 steps, each of which differs by a third.
    noisy = [source.gauss(0.5, 0.06) for _ in range(100_000)]
    assert not _jumps(_settled_at(0.5), noisy)


def test_a_jump_while_it_falls_fast_is_none() -> None:
    course = LossCourse()
    assert not _jumps(course, [0.8] * 20 + [8.0] * 80)
    assert course.falls_fast


def test_it_begins_again_in_the_middle_of_an_epoch() -> None:
    course = _settled_at(0.8)
    for number in range(1, 1000):
        course.observe(0, 8, 0.8)
        if number == 100:
            course.begin_again()
            assert course.falls_fast
        if number > 100 and not course.falls_fast:
            break
    assert number == 228
    assert course.steps == 1024


class _Simulation:
    """A long training that begins again whenever the loss jumps.

    Two lanes take turns with calls of 10 steps.
    """

    def __init__(
        self, loss: Callable[[int], float], *, reports_mean: bool
    ) -> None:
        """Takes the loss of a step, by its number.

        Args:
            loss: Loss of a step.
            reports_mean: Whether the mean of a call's steps is reported, or
                only the loss of its last step.
        """
        self._course = LossCourse()
        self._loss = loss
        self._reports_mean = reports_mean
        self._step = 0
        self.jumps: list[int] = []
        self.settled_part = 0.0

    def run(self, num_steps: int) -> "_Simulation":
        settled = 0
        for call in range(num_steps // 10):
            losses = [self._loss(self._step + n) for n in range(10)]
            self._step += 10
            self._course.observe(
                call % 2,
                10,
                sum(losses) / 10 if self._reports_mean else losses[-1],
            )
            if self._course.has_jumped:
                self.jumps.append(self._step)
                self._course.begin_again()
            settled += 10 * (not self._course.falls_fast)
        self.settled_part = settled / num_steps
        return self


@pytest.mark.parametrize(
    ("level", "noise", "reports_mean"),
    [
        (1.0, 0.05, False),
        (1.0, 0.3, False),
        (1.0, 1.0, True),
        # As of a critic, or of a bound on a likelihood.
        (0.0, 1.0, True),
        (0.0, 1.0, False),
        (-1.0, 0.3, True),
        (0.01, 0.05, False),
    ],
)
def test_noise_does_not_unsettle_a_long_training(
    level: float, noise: float, reports_mean: bool
) -> None:
    for seed in range(3):
        source = random.Random(seed)
        ran = _Simulation(
            lambda step, source=source: source.gauss(level, noise),  # type: ignore[misc]
            reports_mean=reports_mean,
        ).run(200_000)
        assert len(ran.jumps) <= 1
        assert ran.settled_part >= 0.8


@pytest.mark.parametrize(
    ("level", "noise", "rise", "reports_mean"),
    [
        (1.0, 0.05, 0.3, False),
        (1.0, 0.3, 1.5, False),
        (1.0, 1.0, 2.5, True),
        (0.0, 1.0, 2.5, True),
        (-1.0, 0.05, 0.3, False),
    ],
)
def test_a_jump_is_found_in_noise(
    level: float, noise: float, rise: float, reports_mean: bool
) -> None:
    for seed in range(10):
        source = random.Random(seed)
        ran = _Simulation(
            lambda step, source=source: (  # type: ignore[misc]
                source.gauss(level, noise) + (rise if step >= 30_000 else 0.0)
            ),
            reports_mean=reports_mean,
        ).run(31_000)
        [found] = ran.jumps
        assert 30_000 < found <= 30_520


def test_what_is_not_finite_leaves_everything_as_it_was() -> None:
    source = random.Random(3)
    ran = _Simulation(
        lambda step: math.nan if step % 7 == 0 else source.gauss(1.0, 0.05),
        reports_mean=False,
    ).run(200_000)
    assert not ran.jumps
    assert ran.settled_part >= 0.9


def test_each_time_after_the_second_it_takes_longer_to_settle() -> None:
    source = random.Random(3)
    # The loss rises by a half whenever it has settled.
    course = LossCourse()
    level, lengths = 1.0, []
    for _ in range(8):
        while course.falls_fast:
            course.observe(0, 64, source.gauss(level, 0.01 * level))
        lengths.append(course.steps)
        level *= 1.5
        while not course.has_jumped:
            course.observe(0, 64, source.gauss(level, 0.01 * level))
        course.begin_again()
    assert lengths == [
        1024,
        1024,
        *(32768 * 4**n for n in range(4)),
        2**21,
        2**21,
    ]


def test_a_loss_that_jumps_for_ever_is_soon_left_alone() -> None:
    # Ever higher, in leaps.
    ran = _Simulation(
        lambda step: 1.5 ** (step // 1000), reports_mean=True
    ).run(200_000)
    assert 2 <= len(ran.jumps) <= 4

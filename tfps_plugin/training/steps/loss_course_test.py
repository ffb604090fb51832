"""Tests of whether the training loss still falls fast."""

import itertools
import math
import random
from collections.abc import Callable

import pytest

from tfps_plugin.training.steps.loss_course import LossCourse

_MOST_STEPS = 100_000


def _steps_until_settled(
    loss: Callable[[int], float | None],
    *,
    num_lanes: int = 2,
    steps_of_call: int = 10,
    steps_of_epoch: int = 1_000_000,
    reports: Callable[[int], bool] = lambda call: True,
) -> int:
    """Steps that are made while the loss falls fast.

    Lanes take turns; each reports the mean of its own steps of the epoch, as
    metrics of Keras do.

    Args:
        loss: Of a step, by its number.
        num_lanes: How many make calls.
        steps_of_call: How many steps a call makes.
        steps_of_epoch: After how many steps means begin anew.
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
        means[lane] = number + steps_of_call, total
        mean = total / (number + steps_of_call) if is_known else None
        course.observe(lane, steps_of_call, mean)
    assert course.steps == step
    return step


@pytest.mark.parametrize(
    ("loss", "at_least", "at_most"),
    [
        # Level from the beginning: optimizers have their averages to find.
        (lambda step: 0.7, 1024, 1044),
        (lambda step: 0.5 + math.exp(-step / 20), 1024, 1044),
        (lambda step: 0.5 + math.exp(-step / 500), 4096, 8212),
        # It falls by a third each time that steps double, or by 1 %.
        (lambda step: (1 + step) ** -0.5, 16384, 16404),
        (lambda step: (1 + step) ** -0.02, 1024, 1044),
        # Rising is not settled, either.
        (lambda step: 1 + step / 100, 16384, 16404),
        (lambda step: -3.0, 1024, 1044),
        (lambda step: -math.log(2 + step), 2048, 16404),
        (lambda step: 0.0, 1024, 1044),
        # Nobody reports any.
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
    """At which of these calls of 8 steps of a lane it jumps."""
    found = []
    total = 0.0
    for number, loss in enumerate(losses, start=1):
        total += loss
        course.observe(0, 8, total / number)
        if course.has_jumped:
            found.append(number)
    return found


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_settled_loss_jumps_when_it_is_far_above_the_usual(
    sign: float,
) -> None:
    course = _settled_at(0.8 * sign)
    found = _jumps(course, [0.8 * sign] * 64 + [0.8 * sign + 0.2] * 16)
    assert found == [80]
    assert not course.falls_fast
    # It is seen once; then it is the usual, little by little.
    assert not _jumps(course, [])


@pytest.mark.parametrize(
    "losses",
    [
        [0.8] * 200,
        # By a tenth, at once, or twice as much, little by little.
        [0.8] * 64 + [0.88] * 64,
        [0.8 + 0.0002 * number for number in range(1000)],
        [0.8] * 64 + [0.1] * 64,
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
    assert not _jumps(course, [0.8] * 20 + [8.0] * 20)
    assert course.falls_fast


def test_it_begins_again_in_the_middle_of_an_epoch() -> None:
    course = _settled_at(0.8)
    total = 0.0
    for number in range(1, 1000):
        total += 0.8
        course.observe(0, 8, total / number)
        if number == 100:
            course.begin_again()
            assert course.falls_fast
        if number > 100 and not course.falls_fast:
            break
    assert number == 228
    assert course.steps == 1024

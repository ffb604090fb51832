"""Compares closed forms with Keras's own steps with gradients of zero."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.optimizers.catch_up import gap as gaps
from tfps_plugin.training.optimizers.catch_up import learning_rates
from tfps_plugin.training.optimizers.catch_up import moment
from tfps_plugin.training.optimizers.catch_up import of_keras
from tfps_plugin.training.optimizers.catch_up.moment import Moment
from tfps_plugin.training.optimizers.catch_up.step_clock import StepClock
from tfps_plugin.training.optimizers.catch_up.zero_gradients import TABLE

_optimizers = keras.optimizers

_EVERY: dict[str, Callable[[], Any]] = {
    "SGD": lambda: _optimizers.SGD(0.1),
    "SGD, weight decay": lambda: _optimizers.SGD(0.1, weight_decay=0.02),
    "SGD, momentum": lambda: _optimizers.SGD(0.1, momentum=0.9),
    "SGD, all": lambda: _optimizers.SGD(
        0.1, momentum=0.8, nesterov=True, weight_decay=0.02
    ),
    "RMSprop": lambda: _optimizers.RMSprop(0.01),
    "RMSprop, all": lambda: _optimizers.RMSprop(
        0.01, momentum=0.7, centered=True, weight_decay=0.1
    ),
    "Adam": lambda: _optimizers.Adam(0.01),
    "Adam, no momentum": lambda: _optimizers.Adam(0.01, beta_1=0.0),
    "Adam, amsgrad": lambda: _optimizers.Adam(0.01, amsgrad=True),
    "Adam, other betas": lambda: _optimizers.Adam(
        0.01, beta_1=0.95, beta_2=0.98
    ),
    "AdamW": lambda: _optimizers.AdamW(0.01, weight_decay=0.2),
    "Adam, schedule": lambda: _optimizers.Adam(
        _optimizers.schedules.ExponentialDecay(0.01, 30, 0.5)
    ),
    "Nadam": lambda: _optimizers.Nadam(0.01, weight_decay=0.2),
    "Adamax": lambda: _optimizers.Adamax(0.01, weight_decay=0.1),
    "Adagrad": lambda: _optimizers.Adagrad(0.1, weight_decay=0.1),
    "Adadelta": lambda: _optimizers.Adadelta(1.0, weight_decay=0.01),
    "Ftrl": lambda: _optimizers.Ftrl(0.1),
    "Ftrl, all": lambda: _optimizers.Ftrl(
        0.1,
        l1_regularization_strength=0.02,
        l2_regularization_strength=0.1,
        beta=0.2,
        learning_rate_power=-0.4,
    ),
    "Lion": lambda: _optimizers.Lion(0.01),
    "Lion, weight decay": lambda: _optimizers.Lion(0.01, weight_decay=0.1),
}
_GAPS = (0, 1, 2, 3, 10, 100, 1000)


class _OneTable:
    """A table that Keras trains in this process, by dense gradients."""

    def __init__(self, optimizer: Any) -> None:
        random = np.random.default_rng(7)
        self.optimizer = optimizer
        self.table = keras.Variable(
            random.normal(size=(5, 3)), dtype="float32", name="table"
        )
        self._gradients = iter(random.normal(size=(64, 5, 3)))
        optimizer.build([self.table])
        self.rule = of_keras.zero_gradients(optimizer)
        self.elapsed = 0.0

        @tf.function
        def pass_steps(num_steps: tf.Tensor) -> None:
            for _ in tf.range(num_steps):
                optimizer.apply([tf.zeros([5, 3])], [self.table])

        self._pass_steps = pass_steps
        self._step = tf.function(
            lambda gradient: optimizer.apply([gradient], [self.table])
        )

    @property
    def decay(self) -> float | None:
        return self.optimizer.weight_decay

    @property
    def values(self) -> dict[str, tf.Tensor]:
        slots = self.rule.slot_lists()
        return {
            TABLE: tf.constant(self.table.numpy()),
            **{k: tf.constant(v[0].numpy()) for k, v in slots.items()},
        }

    @property
    def rate(self) -> float:
        return float(self.optimizer.learning_rate)

    @property
    def moment(self) -> Moment:
        """Returns the present moment of a clock of the optimizer's steps."""
        number = float(self.optimizer.iterations)
        names = self.rule.marks(self.decay)
        marks: dict[str, Any] = {
            moment.STEP: number,
            moment.ELAPSED: self.elapsed,
        }
        if moment.POTENTIAL in names:
            marks[moment.POTENTIAL] = self.rule.potential(
                tf.constant(number, tf.float64),
                tf.constant(self.rate, tf.float64),
                self.decay,
                learning_rates.ahead(self.optimizer),
                learning_rates.largest(self.optimizer),
            )
        numbers = [*(marks[name] for name in names), self.rate, number]
        return Moment(
            tf.stack([tf.cast(n, tf.float64) for n in numbers]), names
        )

    def step(self, gradient: Any) -> None:
        self._count(1)
        self._step(tf.constant(gradient, tf.float32))

    def train(self, num_steps: int, scale: float = 1.0) -> None:
        for _ in range(num_steps):
            self.step(scale * next(self._gradients))

    def pass_steps(self, num_steps: int) -> None:
        self._count(num_steps)
        self._pass_steps(tf.constant(num_steps))

    def _count(self, num_steps: int) -> None:
        rates = learning_rates.ahead(self.optimizer)
        numbers = np.arange(1, num_steps + 1) + float(self.optimizer.iterations)
        passed = np.full(num_steps, self.rate)
        if rates is not None:
            passed = rates(tf.constant(numbers, tf.float64)).numpy()
        if self.decay:
            passed = -np.log1p(-self.decay * passed) / self.decay
        self.elapsed += passed.sum()


def _caught_up(
    table: _OneTable, values: dict[str, tf.Tensor], then: Moment
) -> dict[str, tf.Tensor]:
    gap = gaps.between(
        tf.tile(then.marks[tf.newaxis], [5, 1]),
        table.moment,
        table.decay,
        tf.float32,
        rank=2,
    )
    return {key: table.rule.after(key, values, gap) for key in values}


@pytest.mark.sample(cases=20)
@pytest.mark.parametrize("before", [1, 40])
@pytest.mark.parametrize("name", _EVERY)
def test_they_do_what_steps_without_a_gradient_do(
    name: str, before: int
) -> None:
    table = _OneTable(_EVERY[name]())
    table.train(before)
    then, moment_then = table.values, table.moment
    passed = 0
    for gap in _GAPS:
        table.pass_steps(gap - passed)
        passed = gap
        actual = _caught_up(table, then, moment_then)
        expected = table.values
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(
                actual[key],
                value,
                rtol=2e-4,
                atol=2e-5 * np.abs(then[key]).max() + 1e-30,
                err_msg=f"{key} after {gap} steps",
            )


@pytest.mark.parametrize("name", ["Adam", "Nadam", "Adamax"])
@pytest.mark.parametrize("size", [1e-9, 1e-7, 1e-5])
def test_gradients_as_small_as_epsilon_move_rows_almost_as_far(
    name: str, size: float
) -> None:
    table = _OneTable(_EVERY[name]())
    table.train(5, size)
    then, moment_then = table.values, table.moment
    table.pass_steps(60)
    actual = _caught_up(table, then, moment_then)
    moved = table.values[TABLE] - then[TABLE]
    np.testing.assert_allclose(
        actual[TABLE] - then[TABLE],
        moved,
        rtol=0.01,
        atol=2e-7 + 1e-3 * np.abs(moved).max(),
    )


@pytest.mark.parametrize("name", ["Adam", "AdamW", "Lion, weight decay"])
def test_a_learning_rate_that_changes_slowly_is_no_great_matter(
    name: str,
) -> None:
    table = _OneTable(_EVERY[name]())
    table.optimizer.learning_rate = 0.01
    table.train(20)
    then, moment_then = table.values, table.moment
    # Falls by a fifth in the ten steps that matter, and further after them.
    for number in range(40):
        table.optimizer.learning_rate = 0.01 * 0.1 ** (number / 100)
        table.pass_steps(1)
    actual = _caught_up(table, then, moment_then)
    moved = table.values[TABLE] - then[TABLE]
    bound = 1e-5 if name.startswith("Lion") else 0.25
    np.testing.assert_allclose(
        actual[TABLE] - then[TABLE],
        moved,
        rtol=1e-6,
        atol=bound * np.abs(moved).max(),
    )


# Steps that shrink weights more than they let momentum fade.
_FAST_DECAY: dict[str, Callable[[], Any]] = {
    "SGD, high rate": lambda: _optimizers.SGD(
        1.0, momentum=0.9, weight_decay=0.1
    ),
    "SGD, high momentum": lambda: _optimizers.SGD(
        0.1, momentum=0.99, weight_decay=0.1
    ),
    "SGD, higher decay": lambda: _optimizers.SGD(
        1.0, momentum=0.9, weight_decay=0.2
    ),
    "SGD, Nesterov": lambda: _optimizers.SGD(
        1.0, momentum=0.95, weight_decay=0.1, nesterov=True
    ),
    "SGD, nothing fades": lambda: _optimizers.SGD(0.1, momentum=1.0),
    "RMSprop": lambda: _optimizers.RMSprop(0.1, momentum=0.9, weight_decay=1.5),
}


@pytest.mark.parametrize("name", _FAST_DECAY)
def test_decay_may_be_faster_than_momentum_fades(name: str) -> None:
    _require_steps_of_keras(_OneTable(_FAST_DECAY[name]()), (0, 1, 5, 50, 800))


def _require_steps_of_keras(table: _OneTable, numbers: Sequence[int]) -> None:
    table.train(3)
    then, moment_then = table.values, table.moment
    passed = 0
    for number in numbers:
        table.pass_steps(number - passed)
        passed = number
        actual = _caught_up(table, then, moment_then)
        largest = max(float(tf.reduce_max(tf.abs(v))) for v in then.values())
        for key, value in table.values.items():
            np.testing.assert_allclose(
                actual[key],
                value,
                rtol=5e-4,
                atol=5e-5 * largest,
                err_msg=f"{key} after {number} steps of "
                f"{table.optimizer.get_config()}",
            )


@pytest.mark.parametrize("seed", range(12))
def test_settings_are_refused_or_have_the_numbers_of_keras(seed: int) -> None:
    random = np.random.default_rng(seed)
    for kind in ("SGD", "Adam"):
        # Fraction that a step takes from weights, then momentum.
        shrinking = float(10 ** random.uniform(-3, 0.1))
        fading = float(10 ** random.uniform(-2, -0.1))
        rate = float(10 ** random.uniform(-2, 0))
        decay = shrinking / rate
        if kind == "SGD":
            optimizer = _optimizers.SGD(
                rate, momentum=1 - fading, weight_decay=decay
            )
            limit = 1.0
        else:
            optimizer = _optimizers.AdamW(
                rate, beta_1=1 - fading, weight_decay=decay
            )
            limit = 1 - (1 - fading) / np.sqrt(optimizer.beta_2)
        table = _OneTable(optimizer)
        if shrinking < 0.99 * limit:
            _require_closed_form(table)
            _require_steps_of_keras(table, (1, 7, 90))
        elif shrinking > limit:
            with pytest.raises(errors.UnsupportedError, match="weight_decay="):
                _require_closed_form(table)


def _require_closed_form(table: _OneTable) -> None:
    table.rule.require_closed_form(
        learning_rates.largest(table.optimizer),
        table.decay,
        is_scheduled=learning_rates.is_scheduled(table.optimizer),
    )


_SCHEDULE = _optimizers.schedules.ExponentialDecay(0.1, 100, 0.9)


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda: _optimizers.AdamW(0.1, weight_decay=1.0), "0.0992"),
        (
            lambda: _optimizers.AdamW(0.05, beta_1=0.99, weight_decay=0.2),
            "0.0457",
        ),
        (lambda: _optimizers.Nadam(0.1, weight_decay=1.0), "0.0992"),
        (lambda: _optimizers.Adamax(0.1, weight_decay=1.0), "0.0987"),
        (lambda: _optimizers.AdamW(_SCHEDULE, weight_decay=1.0), "0.0992"),
        (
            lambda: _optimizers.SGD(_SCHEDULE, momentum=0.95, weight_decay=0.6),
            "0.0833",
        ),
        (lambda: _optimizers.Adagrad(0.1, weight_decay=10.0), "0.1"),
        (lambda: _optimizers.Lion(0.5, weight_decay=2.5), "0.4"),
    ],
)
def test_a_rate_without_a_closed_form_is_refused_by_name(
    make: Any, limit: str
) -> None:
    table = _OneTable(make())
    with pytest.raises(errors.UnsupportedError) as error:
        _require_closed_form(table)
    text = str(error.value)
    assert f"Expected: a learning rate below {limit}" in text
    assert f"weight_decay={table.decay!r}" in text
    assert type(table.optimizer).__name__ in text
    assert "sparse_update='exact'" in text


@pytest.mark.parametrize("traced", [False, True])
def test_a_rate_that_is_assigned_too_high_fails_the_step(traced: bool) -> None:
    optimizer = _optimizers.AdamW(0.01, weight_decay=1.0)
    table = _OneTable(optimizer)
    clock = StepClock(optimizer, table.rule, table.decay)

    def step() -> tf.Tensor:
        return clock.after(clock.now()).numbers

    if traced:
        step = tf.function(step)
    assert np.isfinite(step()).all()
    optimizer.learning_rate = 0.0999
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"rate below 0\.0992"
    ):
        step()


def test_decay_under_a_schedule_counts_step_by_step() -> None:
    """Rates fall by a third while the rows move, from near the limit."""
    schedule = _optimizers.schedules.ExponentialDecay(0.09, 30, 0.3)
    table = _OneTable(_optimizers.AdamW(schedule, weight_decay=1.0))
    _require_steps_of_keras(table, (1, 10, 100))


class _Unknown(keras.optimizers.Adam):
    def update_step(
        self, gradient: Any, variable: Any, learning_rate: Any
    ) -> None:
        super().update_step(gradient, variable, learning_rate)


@pytest.mark.parametrize(
    "make",
    [
        _Unknown,
        lambda: _optimizers.Adam(beta_1=0.9, beta_2=0.5),
        lambda: _optimizers.Adam(beta_1=0.99999, amsgrad=True),
        lambda: _optimizers.Ftrl(l2_shrinkage_regularization_strength=0.1),
        lambda: _optimizers.Lamb(),
    ],
)
def test_what_has_no_closed_form_is_refused_by_name(make: Any) -> None:
    optimizer = make()
    with pytest.raises(errors.UnsupportedError) as error:
        of_keras.zero_gradients(optimizer)
    assert type(optimizer).__name__ in str(error.value)
    assert "sparse_update='exact'" in str(error.value)


@pytest.mark.parametrize("name", _EVERY)
def test_a_table_is_said_to_stay_where_it_does(name: str) -> None:
    table = _OneTable(_EVERY[name]())
    table.train(3)
    before = table.values[TABLE]
    table.pass_steps(2)
    stays = np.array_equal(before, table.values[TABLE])
    # Ftrl's rows follow the learning rate, which has not changed here.
    expected = not stays or name.startswith("Ftrl")
    assert table.rule.moves_table(table.decay) == expected

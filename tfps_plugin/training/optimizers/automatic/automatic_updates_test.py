import copy
import logging
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.strategy.options import SchedulingOptions
from tfps_plugin.training.optimizers.automatic import automatic_updates
from tfps_plugin.training.optimizers.automatic import ps_speed
from tfps_plugin.training.optimizers.automatic.automatic_updates import (
    AutomaticUpdates,
)
from tfps_plugin.variables import testing

_SECONDS_PER_ELEMENT = 1e-8


@pytest.fixture(autouse=True)
def _speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ps_speed, "seconds_per_element", lambda device: _SECONDS_PER_ELEMENT
    )


def _table(num_rows: int, **options: Any) -> Any:
    """Makes a table of four columns: 40 ns a row, without slots."""
    values = np.zeros([num_rows, 4], "float32")
    table = keras.Variable(values, name=f"table_{num_rows}")
    keras_compat.set_value(table, testing.remote_variable(values))
    for name, option in options.items():
        setattr(table, name, option)
    return table


def _adam(optimizer: Any = None) -> Any:
    optimizer = optimizer or keras.optimizers.Adam()
    # Updates every 2.5 ms: a tenth is enough for 6,250 rows.
    optimizer._distribution_strategy = types.SimpleNamespace(
        scheduling=SchedulingOptions(), worker_devices=["w0", "w1"]
    )
    return optimizer


def test_small_tables_are_exact_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    small, big = _table(1_000), _table(100_000)
    choice = AutomaticUpdates()
    with caplog.at_level(logging.INFO, logger="tfps_plugin.training"):
        for _ in range(2):
            choice.consider(_adam(), [small, big])
    assert choice.is_exact(small)
    assert not choice.is_exact(big)
    told = [(r.levelno, r.getMessage()) for r in caplog.records]
    assert [level for level, _ in told] == [logging.INFO, logging.WARNING]
    assert "all rows of table_1000 (1000, 4)" in told[0][1]
    assert "0.04 ms" in told[0][1]
    assert "rows of table_100000 (100000, 4) alone" in told[1][1]
    assert "'caught_up'" in told[1][1]


def test_measured_steps_change_the_choice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    small, big = _table(1_000), _table(100_000)
    choice = AutomaticUpdates()
    choice.consider(_adam(), [small, big])
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="tfps_plugin.training"):
        choice.settle(0.001)
        assert choice.version < 1
        assert not caplog.records
        choice.settle(0.1)
    assert choice.version > 0
    assert choice.is_exact(small)
    assert choice.is_exact(big)
    (record,) = caplog.records
    assert "table_100000" in record.getMessage()
    assert "table_1000 " not in record.getMessage()
    choice.settle(0.0001)
    assert choice.version > 1
    assert not choice.is_exact(small)


def test_a_table_that_comes_later_has_what_is_left() -> None:
    first, second, third = _table(4_000), _table(3_000), _table(2_000)
    choice = AutomaticUpdates()
    choice.consider(_adam(), [first])
    choice.consider(_adam(), [first, second])
    choice.consider(_adam(), [third])
    assert [choice.is_exact(t) for t in (first, second, third)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("optimizer", "table", "is_exact"),
    [
        # Equal to a single process in any case.
        (keras.optimizers.SGD(0.1), _table(10), False),
        (keras.optimizers.Adagrad(0.1), _table(10), False),
        (keras.optimizers.SGD(0.1, use_ema=True), _table(10), True),
        (keras.optimizers.SGD(0.1, momentum=0.5), _table(10), True),
        (
            keras.optimizers.SGD(0.1),
            _table(10, constraint=keras.constraints.NonNeg()),
            True,
        ),
        # The penalty is one of looked-up rows.
        (
            keras.optimizers.Adam(),
            _table(10, regularizer=keras.regularizers.L2()),
            False,
        ),
    ],
)
def test_tables_that_need_no_exact_update(
    optimizer: Any, table: Any, is_exact: bool
) -> None:
    choice = AutomaticUpdates()
    choice.consider(_adam(optimizer), [table])
    assert choice.is_exact(table) is is_exact


def test_optimizers_within_others_are_found() -> None:
    inner = _adam()
    automatic_updates.of(inner).consider(inner, [_table(100_000)])
    outer = keras.optimizers.LossScaleOptimizer(inner)
    assert automatic_updates.version([outer]) == 0
    automatic_updates.settle([outer], 1.0)
    assert automatic_updates.version([outer]) == 1
    # An optimizer without automatic updates is left as it is.
    other = keras.optimizers.Adam()
    automatic_updates.settle([other], 1.0)
    assert not hasattr(other, "_tfps_automatic_updates")


def test_a_copy_of_an_optimizer_chooses_anew() -> None:
    choice = AutomaticUpdates()
    table = _table(10)
    choice.consider(_adam(), [table])
    assert not copy.deepcopy(choice).is_exact(table)


def test_variables_that_are_on_no_ps_are_left_to_others() -> None:
    plain = tf.Variable(np.zeros([10, 4], "float32"))
    choice = AutomaticUpdates()
    choice.consider(_adam(), [plain])
    assert not choice.is_exact(plain)

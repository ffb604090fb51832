"""Tests of the lag between the steps and what callbacks see."""

import math
from typing import Any

import keras
import numpy as np
import pytest

from . import bench
from . import callback_inputs
from . import paces
from . import placements
from .callback_inputs import INPUT_KINDS
from .callback_inputs import INPUT_KINDS_AND_SPLITS
from .comparison import Calls
from .paces import BASE
from .paces import NUM_WORKERS
from .paces import PACES
from .paces import STEP_BY_STEP
from .paces import STEPS
from .paces import Benches

pytestmark = pytest.mark.cluster(num_workers=NUM_WORKERS, num_ps=2)

on_every_input = pytest.mark.parametrize("input_kind", INPUT_KINDS_AND_SPLITS)
in_every_placement = pytest.mark.parametrize("placement", placements.NAMES)


class Shown(keras.callbacks.Callback):
    """Records how many steps the logs of each batch have seen.

    Attributes:
        num_steps: The number of steps of each batch.
    """

    def __init__(self, num_averaged: int) -> None:
        super().__init__()
        self.num_steps: list[int] = []
        self._num_averaged = num_averaged

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        total = logs["power"] * self._num_averaged
        self.num_steps.append(int(math.log(total, BASE) + 1e-6))


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", PACES)
def test_logs_of_batches_lag_by_no_more_than_is_in_flight(
    paced: Benches,
    feature: str,
    input_kind: str,
    placement: str,
) -> None:
    model = paces.reset(paced[feature, placement])
    shown = Shown(paces.coordinator(model).num_lanes)
    model.fit(
        **INPUT_KINDS_AND_SPLITS[input_kind](True, STEPS),
        callbacks=[shown],
        verbose=0,
    )
    behind = [
        batch + 1 - num_steps for batch, num_steps in enumerate(shown.num_steps)
    ]
    assert len(behind) == STEPS
    in_flight = PACES[feature].in_flight
    if callback_inputs.runs_ahead(input_kind):
        # Keras only hears of steps that have run.
        assert -in_flight <= min(behind) <= max(behind) <= 0
    else:
        assert 0 <= min(behind) <= max(behind) <= in_flight


class Reading(keras.callbacks.Callback):
    """Reads the optimizer's count occasionally.

    Attributes:
        ahead: The counts minus the numbers of batches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ahead: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch % 10 == 0:
            iterations = int(self.model.optimizer.iterations)
            self.ahead.append(iterations - (batch + 1))


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", ["optimizer.iterations"])
def test_what_a_callback_reads_does_not_lag(
    paced: Benches,
    feature: str,
    input_kind: str,
    placement: str,
) -> None:
    reading = Reading()
    paces.reset(paced[STEP_BY_STEP, placement]).fit(
        **INPUT_KINDS_AND_SPLITS[input_kind](True, STEPS),
        callbacks=[reading],
        verbose=0,
    )
    most = 0
    if callback_inputs.runs_ahead(input_kind):
        most = PACES[STEP_BY_STEP].in_flight
    assert len(reading.ahead) == STEPS // 10
    assert 0 <= min(reading.ahead) <= max(reading.ahead) <= most


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", ["TerminateOnNaN"])
def test_training_ends_soon_after_a_loss_that_is_no_number(
    paced: Benches,
    feature: str,
    input_kind: str,
    placement: str,
) -> None:
    model, calls = paces.reset(paced[STEP_BY_STEP, placement]), Calls()
    good = 5
    history = model.fit(
        **INPUT_KINDS_AND_SPLITS[input_kind](True, STEPS, bad_from=good),
        epochs=2,
        callbacks=[keras.callbacks.TerminateOnNaN(), calls],
        verbose=0,
    ).history
    assert len(history["loss"]) == 1
    assert np.isnan(history["loss"][0])
    ended = calls.count("on_train_batch_end")
    in_flight = PACES[STEP_BY_STEP].in_flight
    # Each worker may have read its own good batches first.
    assert ended <= NUM_WORKERS * good + 1 + in_flight
    beyond = int(model.optimizer.iterations) - ended
    if callback_inputs.runs_ahead(input_kind):
        assert 0 <= beyond <= in_flight
    else:
        assert good < ended
        assert beyond == 0


def test_one_process_ends_at_that_loss() -> None:
    """This is the reference of the lag: one process has none."""
    model, calls = bench.build(), Calls()
    model.fit(
        **INPUT_KINDS["NumPy"](False, STEPS, bad_from=5),
        callbacks=[keras.callbacks.TerminateOnNaN(), calls],
        verbose=0,
    )
    assert calls.count("on_train_batch_end") == 6

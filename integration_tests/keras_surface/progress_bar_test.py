"""Tests that the progress bar moves with the steps, and costs little."""

import io
import itertools
import re
import sys
import types
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin.training.steps.metrics import progress_logs

from . import bench
from . import paces
from . import placements
from .bench import BATCH
from .bench import INPUTS
from .bench import Bench
from .bench import Y
from .callback_inputs import INPUT_KINDS
from .callback_inputs import INPUT_KINDS_AND_SPLITS
from .paces import NUM_WORKERS
from .paces import PACES
from .paces import STEP_BY_STEP
from .paces import STEPS
from .paces import Benches

pytestmark = pytest.mark.cluster(num_workers=NUM_WORKERS, num_ps=2)

on_every_input = pytest.mark.parametrize("input_kind", INPUT_KINDS_AND_SPLITS)
in_every_placement = pytest.mark.parametrize("placement", placements.NAMES)


@pytest.fixture(scope="module")
def benches(
    strategies: dict[str, tfps.ParameterServerStrategy],
) -> dict[str, Bench]:
    """Returns the model in one process and in each placement."""
    return bench.in_every_placement(strategies, bench.build)


@in_every_placement
@pytest.mark.parametrize("input_kind", INPUT_KINDS)
@pytest.mark.parametrize(
    ("feature", "verbose"), [("verbose=1, end", 1), ("verbose=2, end", 2)]
)
def test_the_progress_bar_ends_as_in_one_process(
    benches: dict[str, Bench],
    feature: str,
    verbose: int,
    input_kind: str,
    placement: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = []
    for each in (benches["alone"], benches[placement]):
        model = each.reset()
        capsys.readouterr()
        model.fit(
            **INPUT_KINDS[input_kind](each.is_ours),
            validation_data=(INPUTS, Y),
            epochs=2,
            verbose=verbose,
        )
        model.predict(INPUTS, batch_size=BATCH, verbose=verbose)
        printed = re.split(r"[\r\n\b]+", capsys.readouterr().out)
        lines = [line for line in printed if line.strip()]
        outcomes.append(
            [
                (_count(line), sorted(re.findall(r"(\w+): [\d.e+-]+", line)))
                for line, following in itertools.pairwise([*lines, ""])
                if _count(line) != _count(following) and _is_end(line)
            ]
        )
    assert outcomes[0]
    assert outcomes[1] == outcomes[0]


def _count(line: str) -> tuple[str, ...]:
    found = re.search(r"(\d+)/(\d+)", line)
    return found.groups() if found else ()


def _is_end(line: str) -> bool:
    return len(set(_count(line))) == 1


def _clock(reading: Callable[[], float]) -> Any:
    return types.SimpleNamespace(monotonic=reading)


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the devices of tensors that the chief fetches from workers."""
    devices: list[str] = []
    tensor = type(tf.constant(0.0))
    owner: Any = next(k for k in tensor.__mro__ if "numpy" in vars(k))
    numpy = owner.numpy

    def noting(self: Any) -> Any:
        if "/job:worker" in self.device:
            devices.append(self.device)
        return numpy(self)

    monkeypatch.setattr(owner, "numpy", noting)
    return devices


class LookingAtBatches(keras.callbacks.Callback):
    """Callback that might read the logs of batches."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", ["no callback of batches"])
def test_results_that_nobody_sees_are_not_brought(
    paced: Benches,
    feature: str,
    input_kind: str,
    placement: str,
    brought: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # While the clock stands still, a tenth of a second never passes.
    monkeypatch.setattr(progress_logs, "time", _clock(lambda: 0.0))
    each = paced[STEP_BY_STEP, placement]
    num_brought = {}
    for name, callback in (
        ("none", keras.callbacks.Callback()),
        ("of batches", LookingAtBatches()),
    ):
        model = paces.reset(each)
        brought.clear()
        history = model.fit(
            **INPUT_KINDS_AND_SPLITS[input_kind](True, STEPS),
            callbacks=[callback],
            verbose=0,
        ).history
        num_brought[name] = len(brought)
    num_lanes = paces.coordinator(model).num_lanes
    # The first result, the last of each lane, and the counts of each lane in
    # one tensor.
    most = len(history) * (1 + num_lanes) + num_lanes
    assert num_brought["none"] <= most
    assert num_brought["of batches"] >= len(history) * STEPS


class Screen(io.StringIO):
    """Records what is printed, and the number of steps at that time.

    Attributes:
        lines: The text, and the number of steps.
    """

    def __init__(self, num_done: Callable[[], float]) -> None:
        super().__init__()
        self.lines: list[tuple[str, float]] = []
        self._num_done = num_done

    def write(self, text: str) -> int:
        """Records the text, and prints nothing."""
        self.lines.append((text, self._num_done()))
        return len(text)


class EveryUpdate(keras.callbacks.Callback):
    """Makes a progress bar print each time, however little time passed."""

    def __init__(self, logger: keras.callbacks.ProgbarLogger) -> None:
        super().__init__()
        self._logger = logger

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._logger.progbar.interval = 0


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", ["verbose=1"])
def test_the_progress_bar_moves_with_the_steps(
    paced: Benches,
    feature: str,
    input_kind: str,
    placement: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A second passes between two reads of the clock: all results are shown.
    clock = itertools.count()
    monkeypatch.setattr(progress_logs, "time", _clock(clock.__next__))
    model = paces.reset(paced[STEP_BY_STEP, placement])
    coordinator = paces.coordinator(model)
    done_before = coordinator.counters.value("steps_done")
    screen = Screen(
        lambda: coordinator.counters.value("steps_done") - done_before
    )
    logger = keras.callbacks.ProgbarLogger()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", screen)
        model.fit(
            **INPUT_KINDS_AND_SPLITS[input_kind](True, STEPS),
            callbacks=[logger, EveryUpdate(logger)],
            verbose=1,
        )
    shown = [
        (int(found[1]), num_done, text)
        for text, num_done in screen.lines
        if (found := re.search(r"(\d+)/(?:\d+|Unknown)", text))
    ]
    assert [count for count, _, _ in shown] == [*range(1, STEPS + 1), STEPS]
    # A step ends a moment before it is counted.
    most = PACES[STEP_BY_STEP].in_flight + coordinator.num_lanes
    assert max(count - num_done for count, num_done, _ in shown) <= most
    examples = {
        found[1]
        for *_, text in shown[:-1]
        if (found := re.search(r"examples: ([\d.e+]+)", text))
    }
    assert len(examples) > STEPS / 10

"""Tests of uses around fit, evaluate and predict, compared to one process."""

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfps_plugin as tfps
from tfps_plugin import errors

from . import bench
from . import callback_inputs
from . import comparison
from . import moments
from . import placements
from .bench import BATCH
from .bench import INPUTS
from .bench import WEIGHTS
from .bench import Bench
from .bench import Y
from .callback_inputs import INPUT_KINDS
from .callback_inputs import INPUT_KINDS_AND_SPLITS
from .callback_inputs import STEPS
from .comparison import Calls

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

on_every_input = pytest.mark.parametrize("input_kind", INPUT_KINDS)
in_every_placement = pytest.mark.parametrize("placement", placements.NAMES)


@pytest.fixture(scope="module")
def benches(
    strategies: dict[str, tfps.ParameterServerStrategy],
) -> dict[str, Bench]:
    """Returns the model in one process and in each placement."""
    return bench.in_every_placement(strategies, bench.build)


def _both(benches: dict[str, Bench], placement: str) -> Iterator[Bench]:
    yield benches["alone"]
    yield benches[placement]


@in_every_placement
@pytest.mark.parametrize("feature", ["train_on_batch, test_, predict_"])
def test_single_batches(
    benches: dict[str, Bench], feature: str, placement: str
) -> None:
    outcomes = []
    for each in _both(benches, placement):
        model = each.reset()
        rows = {name: array[:20] for name, array in INPUTS.items()}
        outcomes.append(
            [
                model.train_on_batch(rows, Y[:20], return_dict=True),
                model.train_on_batch(rows, Y[:20], WEIGHTS[:20]),
                model.train_on_batch(rows, Y[:20], class_weight={0: 1, 1: 3}),
                model.test_on_batch(rows, Y[:20], return_dict=True),
                model.test_on_batch(rows, Y[:20], WEIGHTS[:20]),
                model.predict_on_batch(rows),
                int(model.optimizer.iterations),
                model.get_weights(),
            ]
        )
        model.reset_metrics()
    comparison.assert_same(outcomes[1], outcomes[0])


class _Watched(bench.LinearLoss):
    """Loss that records what a debugger would see in it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[np.ndarray] = []

    def call(self, y_true: Any, y_pred: Any) -> Any:
        self.seen.append(y_pred.numpy())
        return super().call(y_true, y_pred)


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", ["run_eagerly"])
def test_eager_steps_can_be_debugged(
    strategies: dict[str, tfps.ParameterServerStrategy],
    feature: str,
    input_kind: str,
    placement: str,
) -> None:
    benches = bench.in_every_placement(
        {placement: strategies[placement]},
        lambda: bench.build(loss=_Watched(), run_eagerly=True),
    )
    outcomes = []
    for each in _both(benches, placement):
        model, calls = each.reset(), Calls()
        arguments = INPUT_KINDS[input_kind](each.is_ours)
        history = model.fit(
            **arguments, callbacks=[calls], epochs=2, verbose=0
        ).history
        steps = arguments.pop("steps_per_epoch", None)
        arguments.pop("shuffle", None)
        outcomes.append(
            [
                history,
                model.evaluate(
                    **arguments, steps=steps, verbose=0, return_dict=True
                ),
                model.loss.seen,
                model.predict(INPUTS, verbose=0),
                model.get_weights(),
                repr(calls.made),
            ]
        )
    assert len(outcomes[0][2]) == 3 * STEPS
    comparison.assert_same(outcomes[1], outcomes[0])


@in_every_placement
@pytest.mark.parametrize("feature", ["jit_compile"])
def test_jit_compilation_is_ignored_with_one_warning(
    strategies: dict[str, tfps.ParameterServerStrategy],
    feature: str,
    placement: str,
) -> None:
    with (
        strategies[placement].scope(),
        pytest.warns(UserWarning, match="jit_compile"),
    ):
        model = bench.build(jit_compile=True)
    # Warnings are errors here: fit() gives no second one.
    model.fit(**INPUT_KINDS["NumPy"](True), verbose=0)
    assert int(model.optimizer.iterations) == STEPS


class _Ending(keras.callbacks.Callback):
    """Runs an action at one batch of the second epoch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._epoch == 1 and batch == 4:
            if self._how == "KeyboardInterrupt":
                raise KeyboardInterrupt
            self.model.stop_training = True


@in_every_placement
@pytest.mark.parametrize("input_kind", INPUT_KINDS_AND_SPLITS)
@pytest.mark.parametrize("feature", ["stop_training", "KeyboardInterrupt"])
def test_an_early_end_leaves_everything_usable(
    benches: dict[str, Bench], feature: str, input_kind: str, placement: str
) -> None:
    outcomes = []
    for each in _both(benches, placement):
        model, calls = each.reset(), Calls()
        arguments = INPUT_KINDS_AND_SPLITS[input_kind](each.is_ours)
        try:
            model.fit(
                **arguments,
                epochs=3,
                callbacks=[calls, _Ending(feature)],
                verbose=0,
            )
        except KeyboardInterrupt:
            assert feature == "KeyboardInterrupt"
        least = most = STEPS + 5
        if each.is_ours and feature == "KeyboardInterrupt":
            # Requested steps may still have been in flight.
            least = STEPS
        if each.is_ours and callback_inputs.runs_ahead(input_kind):
            most = 2 * STEPS
        assert least <= int(model.optimizer.iterations) <= most
        again = Calls()
        model = each.reset()
        model.fit(**arguments, callbacks=[again], verbose=0)
        outcomes.append(
            [repr(calls.made), repr(again.made), model.get_weights()]
        )
    comparison.assert_same(outcomes[1], outcomes[0])


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", ["steps_per_execution"])
def test_steps_in_one_execution(
    strategies: dict[str, tfps.ParameterServerStrategy],
    feature: str,
    input_kind: str,
    placement: str,
) -> None:
    benches = bench.in_every_placement(
        {placement: strategies[placement]},
        lambda: bench.build(steps_per_execution=4),
    )
    outcomes = []
    for each in _both(benches, placement):
        model, calls = each.reset(), Calls()
        model.fit(
            **INPUT_KINDS[input_kind](each.is_ours),
            callbacks=[calls],
            epochs=2,
            verbose=0,
        )
        evaluated = model.evaluate(
            INPUTS, Y, batch_size=BATCH, callbacks=[calls], verbose=0
        )
        predicted = model.predict(
            INPUTS, batch_size=BATCH, callbacks=[calls], verbose=0
        )
        outcomes.append(
            [
                model.get_weights(),
                int(model.optimizer.iterations),
                evaluated,
                predicted,
                repr(calls.made),
            ]
        )
    comparison.assert_same(outcomes[1], outcomes[0])


def _short_creator(is_ours: bool) -> dict[str, Any]:
    def dataset_fn(context: Any) -> tf.data.Dataset:
        # Two workers share the batches: two each.
        rows = 2 * BATCH if is_ours else 4 * BATCH
        return tf.data.Dataset.from_tensor_slices(
            ({name: array[:rows] for name, array in INPUTS.items()}, Y[:rows])
        ).batch(BATCH)

    given = tfps.DatasetCreator(dataset_fn) if is_ours else dataset_fn(None)
    return {"x": given}


def _short_arrays(is_ours: bool) -> dict[str, Any]:
    rows = 4 * BATCH
    return {
        "x": {name: array[:rows] for name, array in INPUTS.items()},
        "y": Y[:rows],
        "batch_size": BATCH,
    }


@in_every_placement
@pytest.mark.parametrize(
    ("input_kind", "arguments_of"),
    [("DatasetCreator", _short_creator), ("NumPy", _short_arrays)],
    ids=["DatasetCreator", "NumPy"],
)
@pytest.mark.parametrize("feature", ["too few batches"])
def test_input_that_runs_dry_warns_and_stops(
    benches: dict[str, Bench],
    feature: str,
    input_kind: str,
    arguments_of: Any,
    placement: str,
) -> None:
    for each in _both(benches, placement):
        model = each.reset()
        with pytest.warns(UserWarning, match="ran out of data"):
            history = model.fit(
                **arguments_of(each.is_ours),
                steps_per_epoch=6,
                epochs=2,
                verbose=0,
            ).history
        assert sorted(history) == ["examples", "loss", "mse", "weight"]
        assert history["examples"][0] == 4 * BATCH
        if each.is_ours:
            assert int(model.optimizer.iterations) == 4 * len(history["loss"])
        with pytest.warns(UserWarning, match="ran out of data"):
            evaluated = model.evaluate(
                **arguments_of(each.is_ours),
                steps=6,
                verbose=0,
                return_dict=True,
            )
        assert evaluated["examples"] == 4 * BATCH


@in_every_placement
@pytest.mark.parametrize("feature", ["refused arguments"])
def test_what_cannot_be_honoured_is_refused(
    benches: dict[str, Bench], feature: str, placement: str
) -> None:
    model = benches[placement].reset()
    creator = INPUT_KINDS["DatasetCreator"](True)
    for arguments in (
        {"y": Y},
        {"batch_size": 3},
        {"sample_weight": WEIGHTS},
        {"validation_split": 0.2},
    ):
        with pytest.raises(errors.InputError, match="Received"):
            model.fit(**creator, **arguments, verbose=0)
    assert int(model.optimizer.iterations) == 0


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", ["save in on_train_batch_end"])
def test_a_save_within_an_epoch_is_of_one_moment(
    benches: dict[str, Bench],
    feature: str,
    input_kind: str,
    placement: str,
    tmp_path: pathlib.Path,
) -> None:
    """Each step adds the same to every weight, which reveals a mixture."""

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch % 3 == 1:
                self.model.save_weights(path / f"{batch}.weights.h5")

    outcomes = []
    for each in _both(benches, placement):
        path = tmp_path / str(each.is_ours)
        path.mkdir()
        model = each.reset()
        start = moments.now(model)
        model.fit(
            **INPUT_KINDS[input_kind](each.is_ours),
            callbacks=[Save()],
            verbose=0,
        )
        end = moments.now(model)
        outcomes.append(
            {
                file.name: comparison.contents(file)
                for file in sorted(path.iterdir())
            }
        )
        for file in path.iterdir():
            moment = moments.saved(model, file)
            moments.assert_at_batch(
                moment.num_steps, int(file.name.partition(".")[0]) + 1
            )
            moments.assert_on_the_way(moment, start, end)
    assert len(outcomes[0]) == 3
    if callback_inputs.runs_ahead(input_kind):
        assert list(outcomes[1]) == list(outcomes[0])
    else:
        comparison.assert_same(outcomes[1], outcomes[0])

"""Tests that every callback of Keras does the same as in one process."""

import functools
import pathlib
from typing import Any

import keras
import pytest

import tfps_plugin as tfps

from . import bench
from . import callback_inputs
from . import callback_table
from . import comparison
from . import moments
from . import orbax_checkpoints
from . import placements
from .bench import Bench
from .callback_inputs import INPUT_KINDS
from .callback_inputs import INPUT_KINDS_AND_SPLITS
from .callback_inputs import STEPS
from .callback_table import Lockstep
from .callback_table import Trained
from .comparison import Calls
from .moments import Moment

pytestmark = pytest.mark.cluster(num_workers=2, num_ps=2)

on_every_input = pytest.mark.parametrize("input_kind", INPUT_KINDS)
in_every_placement = pytest.mark.parametrize("placement", placements.NAMES)


@pytest.fixture(scope="module")
def benches(
    strategies: dict[str, tfps.ParameterServerStrategy],
) -> dict[str, Bench]:
    """Returns the model in one process and in each placement."""
    return bench.in_every_placement(strategies, bench.build)


def test_no_callback_of_keras_is_forgotten(cluster: Any) -> None:
    public = {name for name in dir(keras.callbacks) if name[0].isupper()}
    tested = {name.split(",")[0] for name in callback_table.CASES}
    tested.update(callback_table.OTHERS)
    assert public - tested == set()
    # The oldest Keras has none of these.
    assert tested - public <= {"OrbaxCheckpoint"}


def _run(
    each: Bench, feature: str, input_kind: str, folder: pathlib.Path
) -> tuple[Any, Any, Any]:
    """Returns the callback's results, the history, and all hook calls."""
    case = callback_table.CASES[feature]
    calls = Calls()
    model = each.reset()
    start = moments.now(model)
    callback = case.make(folder)
    callbacks = [callback, calls]
    if feature == "CallbackList":
        callbacks = keras.callbacks.CallbackList(
            callbacks, add_history=True, model=model
        )
    history = model.fit(
        **INPUT_KINDS[input_kind](each.is_ours),
        validation_data=(bench.INPUTS, bench.Y),
        epochs=callback_table.EPOCHS,
        callbacks=callbacks,
        verbose=0,
    ).history
    trained = Trained(
        model, callback, folder, history, start, moments.now(model)
    )
    kept = {
        key: values if key.startswith("val_") else [None] * len(values)
        for key, values in history.items()
    }
    observe = case.observe
    if callback_inputs.runs_ahead(input_kind):
        observe = case.observe_ahead or observe
    return observe(trained), kept, calls.made


@pytest.fixture(scope="module")
def alone(
    benches: dict[str, Bench], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Returns cached runs in one process."""

    @functools.cache
    def run(feature: str, input_kind: str) -> Any:
        folder = tmp_path_factory.mktemp("alone")
        return _run(benches["alone"], feature, input_kind, folder)

    return run


@pytest.mark.sample(cases=8)
@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", callback_table.CASES)
def test_callback(
    benches: dict[str, Bench],
    alone: Any,
    feature: str,
    input_kind: str,
    placement: str,
    tmp_path: pathlib.Path,
) -> None:
    needed = callback_table.CASES[feature].needs
    if needed is not None:
        pytest.importorskip(needed)
    expected = alone(feature, input_kind)
    actual = _run(benches[placement], feature, input_kind, tmp_path)
    assert actual[2] == expected[2]
    comparison.assert_same(actual[:2], expected[:2])


@in_every_placement
@pytest.mark.parametrize("feature", ["OrbaxCheckpoint, restored"])
def test_orbax_checkpoints_go_both_ways(
    benches: dict[str, Bench],
    strategies: dict[str, tfps.ParameterServerStrategy],
    feature: str,
    placement: str,
    tmp_path: pathlib.Path,
) -> None:
    pytest.importorskip("orbax.checkpoint")
    ends = {}
    for name in ("alone", placement):
        model = benches[name].reset()
        model.fit(
            **INPUT_KINDS["NumPy"](name != "alone"),
            callbacks=[
                keras.callbacks.OrbaxCheckpoint(
                    str(tmp_path / name), save_on_background=False
                )
            ],
            verbose=0,
        )
        ends[name] = moments.now(model)
    for name, other in (("alone", placement), (placement, "alone")):
        restored = moments.saved(benches[name].reset(), tmp_path / other)
        comparison.assert_same(restored, ends[other])
    with strategies[placement].scope():
        loaded = orbax_checkpoints.loaded(tmp_path / "alone")
    comparison.assert_same(loaded, ends["alone"])


class Interrupting(keras.callbacks.Callback):
    """Ends training in the middle of the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._epoch == 1 and batch == 5:
            raise _Interrupted


class _Interrupted(Exception):
    """The loss of the machine."""


@in_every_placement
@pytest.mark.parametrize("input_kind", INPUT_KINDS_AND_SPLITS)
@pytest.mark.parametrize(
    ("feature", "save_freq"),
    [("BackupAndRestore", "epoch"), ("BackupAndRestore, save_freq=3", 3)],
)
def test_an_interrupted_fit_goes_on_where_it_was(
    benches: dict[str, Bench],
    feature: str,
    save_freq: Any,
    input_kind: str,
    placement: str,
    tmp_path: pathlib.Path,
) -> None:
    start = moments.now(benches["alone"].reset())
    (alone, end), (ours, moment) = (
        _interrupted_and_resumed(
            benches[name], save_freq, input_kind, tmp_path / name
        )
        for name in ("alone", placement)
    )
    assert ours == alone
    if save_freq != "epoch" and callback_inputs.runs_ahead(input_kind):
        # The backup holds all steps that ran.
        assert end.num_steps <= moment.num_steps <= 4 * STEPS
        moments.assert_on_the_way(moment, start, end)
    else:
        comparison.assert_same(moment, end)


def _interrupted_and_resumed(
    each: Bench, save_freq: Any, input_kind: str, folder: pathlib.Path
) -> tuple[list[Any], Moment]:
    """Returns the calls of the second fit, and the model after it."""

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(folder, save_freq)

    arguments = {
        **INPUT_KINDS_AND_SPLITS[input_kind](each.is_ours),
        "epochs": 3,
        "verbose": 0,
    }
    with pytest.raises(_Interrupted):
        each.reset().fit(callbacks=[backup(), Interrupting()], **arguments)
    assert folder.exists()
    calls = Calls()
    model = each.reset()
    model.fit(callbacks=[backup(), calls], **arguments)
    assert not folder.exists()
    return calls.made, moments.now(model)


@pytest.fixture(scope="module")
def averaging(
    strategies: dict[str, tfps.ParameterServerStrategy],
) -> dict[str, Bench]:
    """Returns a model whose optimizer keeps averages."""
    return bench.in_every_placement(
        strategies,
        lambda: bench.build(
            lambda: keras.optimizers.SGD(
                1e-2, name="sgd", use_ema=True, ema_momentum=0.8
            )
        ),
    )


# Averages depend on the order of the steps, which is unknown if workers run
# ahead of `Lockstep`.
@in_every_placement
@pytest.mark.parametrize("input_kind", ["DatasetCreator", "NumPy"])
@pytest.mark.parametrize("feature", ["SwapEMAWeights"])
def test_averages_take_the_place_of_weights(
    averaging: dict[str, Bench],
    feature: str,
    input_kind: str,
    placement: str,
    tmp_path: pathlib.Path,
) -> None:
    outcomes = {}
    for name in ("alone", placement):
        model = averaging[name].reset()
        history = model.fit(
            **INPUT_KINDS[input_kind](name != "alone"),
            validation_data=(bench.INPUTS, bench.Y),
            epochs=2,
            callbacks=[
                keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
                keras.callbacks.ModelCheckpoint(
                    str(tmp_path / (name + "{epoch}.weights.h5")),
                    save_weights_only=True,
                ),
                Lockstep(),
            ],
            verbose=0,
        ).history
        outcomes[name] = [
            history["val_mse"],
            model.get_weights(),
            [
                comparison.contents(tmp_path / f"{name}{epoch}.weights.h5")
                for epoch in (1, 2)
            ],
        ]
    comparison.assert_same(outcomes[placement], outcomes["alone"])

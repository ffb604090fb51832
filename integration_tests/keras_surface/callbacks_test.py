"""Every callback of Keras does on the cluster what it does in one process."""

import functools
import pathlib
from typing import Any

import keras
import numpy as np
import pytest

import tfps_plugin as tfps

from . import bench
from . import callback_table
from . import comparison
from . import placements
from .bench import Bench
from .callback_table import INPUT_KINDS
from .callback_table import STEPS
from .callback_table import Lockstep
from .callback_table import Trained
from .comparison import Calls

pytestmark = [
    pytest.mark.compat,
    pytest.mark.cluster(num_workers=2, num_ps=2),
]

on_every_input = pytest.mark.parametrize("input_kind", INPUT_KINDS)
in_every_placement = pytest.mark.parametrize("placement", placements.NAMES)


@pytest.fixture(scope="module")
def benches(
    strategies: dict[str, tfps.ParameterServerStrategy],
) -> dict[str, Bench]:
    """The model, in one process and in each placement."""
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
    """What the callback left; the history; all calls of a callback."""
    case = callback_table.CASES[feature]
    calls = Calls()
    model = each.reset()
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
        **case.arguments,
    ).history
    trained = Trained(model, callback, folder, history)
    kept = {
        key: values if key.startswith("val_") else [None] * len(values)
        for key, values in history.items()
    }
    return case.observe(trained), kept, calls.made


@pytest.fixture(scope="module")
def alone(
    benches: dict[str, Bench], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """Runs in one process, each once."""

    @functools.cache
    def run(feature: str, input_kind: str) -> Any:
        folder = tmp_path_factory.mktemp("alone")
        return _run(benches["alone"], feature, input_kind, folder)

    return run


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
    """The machine was taken away."""


@in_every_placement
@on_every_input
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
    outcomes = {
        name: _interrupted_and_resumed(
            benches[name], save_freq, input_kind, tmp_path / name
        )
        for name in ("alone", placement)
    }
    assert outcomes[placement][0] == outcomes["alone"][0]
    comparison.assert_same(outcomes[placement][1:], outcomes["alone"][1:])


def _interrupted_and_resumed(
    each: Bench, save_freq: Any, input_kind: str, folder: pathlib.Path
) -> list[Any]:
    """The calls of the second fit, and the model's numbers after it."""

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(folder, save_freq)

    arguments = {
        **INPUT_KINDS[input_kind](each.is_ours),
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
    return [calls.made, model.get_weights(), int(model.optimizer.iterations)]


@in_every_placement
@on_every_input
@pytest.mark.parametrize("feature", ["TerminateOnNaN"])
def test_training_ends_soon_after_a_loss_that_is_no_number(
    benches: dict[str, Bench], feature: str, input_kind: str, placement: str
) -> None:
    for name in ("alone", placement):
        model = benches[name].reset()
        kernel = model.get_layer("dense").kernel
        kernel.assign(np.full(kernel.shape, np.nan))
        calls = Calls()
        history = model.fit(
            **INPUT_KINDS[input_kind](name != "alone"),
            epochs=2,
            callbacks=[keras.callbacks.TerminateOnNaN(), calls],
            verbose=0,
        ).history
        assert len(history["loss"]) == 1
        assert np.isnan(history["loss"][0])
        assert 1 <= calls.count("on_train_batch_end") <= STEPS


@pytest.fixture(scope="module")
def averaging(
    strategies: dict[str, tfps.ParameterServerStrategy],
) -> dict[str, Bench]:
    """A model whose optimizer keeps averages."""
    return bench.in_every_placement(
        strategies,
        lambda: bench.build(
            lambda: keras.optimizers.SGD(
                1e-2, name="sgd", use_ema=True, ema_momentum=0.8
            )
        ),
    )


@in_every_placement
@on_every_input
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

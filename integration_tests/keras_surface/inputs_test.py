"""Tests of every kind of input: each example once, Keras's loop unchanged."""

import functools
import warnings
from typing import Any

import keras
import pytest

import tfps_plugin as tfps

from . import bench
from . import comparison
from . import creator_inputs
from . import input_table
from . import placements
from .bench import Bench
from .comparison import Calls
from .input_arguments import Arguments

pytestmark = pytest.mark.cluster(
    num_workers=creator_inputs.NUM_WORKERS, num_ps=2
)


@pytest.fixture(scope="module")
def benches(
    strategies: dict[str, tfps.ParameterServerStrategy],
) -> dict[str, Bench]:
    """Returns the model in one process and in each placement."""
    return bench.in_every_placement(strategies, bench.build)


def _fit(model: keras.Model, arguments: Arguments, calls: Calls) -> Any:
    history = model.fit(
        **{"epochs": 2, "verbose": 0, "callbacks": [calls], **arguments.fit}
    ).history
    return {
        # The results of steps depend on their order. But validation uses equal
        # weights, and examples are counted.
        "history": {
            key: values
            if key.startswith("val_") or key in ("examples", "weight")
            else [None] * len(values)
            for key, values in history.items()
        },
        "weights": model.get_weights(),
    }


def _evaluate(model: keras.Model, arguments: Arguments, calls: Calls) -> Any:
    return model.evaluate(
        **arguments.evaluate, callbacks=[calls], verbose=0, return_dict=True
    )


def _predict(model: keras.Model, arguments: Arguments, calls: Calls) -> Any:
    return model.predict(**arguments.predict, callbacks=[calls], verbose=0)


_BATCH_ENDED = "on_train_batch_end"
_METHODS = {"fit": _fit, "evaluate": _evaluate, "predict": _predict}


class Run:
    """One call of a method, and its results.

    Attributes:
        outcome: Its return value and effects.
        calls: The calls of its callback.
        told: Keras's notifications to a `PyDataset`.
        ran_dry: Whether there was a warning that input ended too soon.
        is_counted: Whether the number of batches was an argument.
    """

    def __init__(self, bench: Bench, feature: str, input_kind: str) -> None:
        arguments = input_table.KINDS[input_kind].make(bench.is_ours)
        model = bench.reset()
        calls = Calls()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            self.outcome = _METHODS[feature](model, arguments, calls)
        self.calls = calls.made
        given = getattr(arguments, feature)
        self.told = getattr(given["x"], "told", [])
        self.is_counted = bool({"steps", "steps_per_epoch"} & set(given))
        self.ran_dry = any("ran out of" in str(w.message) for w in warned)


@pytest.fixture(scope="module")
def alone(benches: dict[str, Bench]) -> Any:
    """Returns cached runs in one process."""
    return functools.cache(
        lambda feature, input_kind: Run(benches["alone"], feature, input_kind)
    )


@pytest.mark.sample(cases=24)
@pytest.mark.parametrize("placement", placements.NAMES)
@pytest.mark.parametrize(("input_kind", "feature"), input_table.ROWS)
def test_input(
    benches: dict[str, Bench],
    alone: Any,
    feature: str,
    input_kind: str,
    placement: str,
) -> None:
    expected = alone(feature, input_kind)
    actual = Run(benches[placement], feature, input_kind)
    # Without a number of batches, Keras warns of every unexpected end. We never
    # do: it is the end of an epoch.
    assert actual.ran_dry == (expected.ran_dry and expected.is_counted)
    assert actual.calls == expected.calls
    assert actual.told == expected.told
    comparison.assert_same(actual.outcome, expected.outcome)
    if feature == "fit":
        iterations = int(benches[placement].model.optimizer.iterations)
        ended = [call for call in actual.calls if call[0] == _BATCH_ENDED]
        assert iterations == len(ended)

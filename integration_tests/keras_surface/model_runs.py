"""Results of a model of the table that is trained and used."""

from typing import Any

import keras
import tensorflow as tf

import tfps_plugin as tfps

from . import model_table
from .bench import BATCH
from .comparison import Calls
from .model_table import CASES


def _of_arrays(x: Any, y: Any, is_ours: bool) -> dict[str, Any]:
    return {"x": x, "y": y, "batch_size": BATCH, "epochs": 2}


def _of_creator(x: Any, y: Any, is_ours: bool) -> dict[str, Any]:
    def dataset_fn(context: Any) -> tf.data.Dataset:
        x_of_dataset = tuple(x) if isinstance(x, list) else x
        rows = tf.data.Dataset.from_tensor_slices((x_of_dataset, y))
        return rows.batch(BATCH)

    given = tfps.DatasetCreator(dataset_fn) if is_ours else dataset_fn(None)
    return {"x": given}


_INPUT_KINDS = {"NumPy": _of_arrays, "DatasetCreator": _of_creator}


def run(
    feature: str, strategy: Any = None
) -> tuple[dict[str, Any], keras.Model]:
    """Runs fit, evaluate and predict, one after the other.

    Args:
        feature: The model's row of the table.
        strategy: Strategy of the model; None for one process.

    Returns:
        The results by kind of input, and the model.
    """
    case = CASES[feature]
    is_ours = strategy is not None
    model = model_table.build(case, strategy)
    outcome: dict[str, Any] = {}
    for name, arguments_of in _INPUT_KINDS.items():
        calls = Calls()
        x, y = case.x, case.y
        if isinstance(model, model_table.Task) and name != "NumPy":
            x = model.preprocessed(x)
        arguments = arguments_of(x, y, is_ours)
        outcome[name] = {
            "history": model.fit(
                **arguments, callbacks=[calls], verbose=0
            ).history
        }
        arguments.pop("epochs", None)
        outcome[name]["evaluated"] = model.evaluate(
            **arguments, callbacks=[calls], verbose=0, return_dict=True
        )
        arguments.pop("y", None)
        outcome[name]["predicted"] = model.predict(
            **arguments, callbacks=[calls], verbose=0
        )
        outcome[name]["calls"] = repr(calls.made)
        outcome[name]["weights"] = model.get_weights()
    return outcome, model

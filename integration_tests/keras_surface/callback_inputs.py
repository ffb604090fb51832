"""The same batch repeatedly, read in every way that callbacks may meet.

With it, the state after a number of steps is known, in any order of the steps.
"""

from typing import Any
from typing import Protocol

import numpy as np
import tensorflow as tf

import tfps_plugin as tfps

from .bench import BATCH
from .bench import INPUTS
from .bench import Y

# Steps of an epoch, unless a test asks for more.
STEPS = 8
_NUM_SPLITS = 4


class InputKind(Protocol):
    """Makes arguments of `fit`."""

    def __call__(
        self,
        is_ours: bool,
        num_steps: int = STEPS,
        bad_from: int | None = None,
    ) -> dict[str, Any]:
        """Makes the arguments.

        Args:
            is_ours: For our strategy, or for one process.
            num_steps: Steps of an epoch.
            bad_from: The first batch of every pipeline with NaN; later ones may
                have NaN, too. None for no NaN.
        """


def _rows(*, are_bad: bool) -> dict[str, np.ndarray]:
    rows = {name: array[:BATCH] for name, array in INPUTS.items()}
    if are_bad:
        rows["x"] = np.full_like(rows["x"], np.nan)
    return rows


def _for_ever(*, is_bad: bool = False) -> tf.data.Dataset:
    rows = (_rows(are_bad=is_bad), Y[:BATCH])
    return tf.data.Dataset.from_tensor_slices(rows).repeat().batch(BATCH)


def _batches(bad_from: int | None) -> tf.data.Dataset:
    if bad_from is None:
        return _for_ever()
    return _for_ever().take(bad_from).concatenate(_for_ever(is_bad=True))


def _of_creator(
    is_ours: bool, num_steps: int = STEPS, bad_from: int | None = None
) -> dict[str, Any]:
    def dataset_fn(context: Any) -> tf.data.Dataset:
        return _batches(bad_from)

    given = tfps.DatasetCreator(dataset_fn) if is_ours else dataset_fn(None)
    return {"x": given, "steps_per_epoch": num_steps}


def _of_creator_without_steps(
    is_ours: bool, num_steps: int = STEPS, bad_from: int | None = None
) -> dict[str, Any]:
    def dataset_fn(context: tf.distribute.InputContext) -> tf.data.Dataset:
        share = num_steps // context.num_input_pipelines
        return _batches(bad_from).take(share)

    if is_ours:
        return {"x": tfps.DatasetCreator(dataset_fn)}
    return {"x": dataset_fn(tf.distribute.InputContext())}


def _of_splits(
    is_ours: bool, num_steps: int = STEPS, bad_from: int | None = None
) -> dict[str, Any]:
    def dataset_fn(split: Any) -> tf.data.Dataset:
        return _batches(bad_from).take(num_steps // _NUM_SPLITS)

    if is_ours:
        splits = list(range(_NUM_SPLITS))
        return {"x": tfps.DatasetCreator(dataset_fn, splits=splits)}
    return {"x": _batches(bad_from).take(num_steps)}


def _of_arrays(
    is_ours: bool, num_steps: int = STEPS, bad_from: int | None = None
) -> dict[str, Any]:
    rows = np.tile(np.arange(BATCH), num_steps)
    x = {name: array[rows] for name, array in INPUTS.items()}
    if bad_from is not None:
        x["x"][bad_from * BATCH : (bad_from + 1) * BATCH] = np.nan
    return {"x": x, "y": Y[rows], "batch_size": BATCH, "shuffle": False}


_WITHOUT_STEPS = "DatasetCreator, no steps"
_SPLITS = "DatasetCreator, splits"

INPUT_KINDS: dict[str, InputKind] = {
    "DatasetCreator": _of_creator,
    _WITHOUT_STEPS: _of_creator_without_steps,
    "NumPy": _of_arrays,
}
# For callbacks that may treat splits differently.
INPUT_KINDS_AND_SPLITS: dict[str, InputKind] = {
    **INPUT_KINDS,
    _SPLITS: _of_splits,
}


def runs_ahead(input_kind: str) -> bool:
    """Returns whether workers run ahead: the number of steps is not known.

    Args:
        input_kind: Name of the kind of input.
    """
    return input_kind in (_WITHOUT_STEPS, _SPLITS)

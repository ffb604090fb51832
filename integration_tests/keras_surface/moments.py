"""Moments of a training in which every step adds the same.

So weights show how many steps they have seen, and reveal a mixture of moments.
"""

import pathlib
from typing import NamedTuple

import keras
import numpy as np

from . import comparison
from .callback_inputs import STEPS


class Moment(NamedTuple):
    """A model at one time.

    Attributes:
        num_steps: Number of steps that its optimizer has counted.
        weights: Its weights.
    """

    num_steps: int
    weights: list[np.ndarray]


def now(model: keras.Model) -> Moment:
    """Returns the present state of the model.

    Args:
        model: The model; no step may be in flight.
    """
    return Moment(int(model.optimizer.iterations), model.get_weights())


def saved(model: keras.Model, path: pathlib.Path) -> Moment:
    """Restores a saved model, and returns its state.

    Args:
        model: A model of the same kind; it is changed.
        path: Argument of `load_weights`.
    """
    model.load_weights(str(path))
    return now(model)


def assert_on_the_way(moment: Moment, start: Moment, end: Moment) -> None:
    """Checks that a state is consistent: one moment of a training.

    Args:
        moment: The observed state.
        start: An earlier moment.
        end: Another moment, of the same training or of one that adds the same.
    """
    part = (moment.num_steps - start.num_steps) / (
        end.num_steps - start.num_steps
    )
    comparison.assert_same(
        moment.weights,
        [
            first + part * (last - first)
            for first, last in zip(start.weights, end.weights, strict=True)
        ],
    )


def assert_at_batch(num_steps: int, num_batches: int) -> None:
    """Checks that a callback sees its batches, and perhaps more of the epoch.

    Args:
        num_steps: Number of steps that it has seen, where workers run ahead.
        num_batches: Number of batches that were reported to it; both count
            from the first epoch on.
    """
    end_of_epoch = -(-num_batches // STEPS) * STEPS
    assert num_batches <= num_steps <= end_of_epoch

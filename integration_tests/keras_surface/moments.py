"""Moments of a training in which every step adds the same.

So weights tell how many steps they have seen, and a mixture of moments shows.
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
        num_steps: How many steps its optimizer has counted.
        weights: Its weights.
    """

    num_steps: int
    weights: list[np.ndarray]


def now(model: keras.Model) -> Moment:
    """What the model is now.

    Args:
        model: The model; no step may be in flight.
    """
    return Moment(int(model.optimizer.iterations), model.get_weights())


def saved(model: keras.Model, path: pathlib.Path) -> Moment:
    """What was saved, restored into the model.

    Args:
        model: A model of the same kind; it is changed.
        path: What `load_weights` takes.
    """
    model.load_weights(str(path))
    return now(model)


def assert_on_the_way(moment: Moment, start: Moment, end: Moment) -> None:
    """One moment it has to be, with all the steps that its weights have seen.

    Args:
        moment: What was seen.
        start: A moment before.
        end: Another one, of the same training or of one that adds the same.
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
    """A callback sees what it was told of, and perhaps more of the epoch.

    Args:
        num_steps: Steps that it has seen, where workers run ahead.
        num_batches: Batches that it was told of, both counted from the first
            epoch on.
    """
    end_of_epoch = -(-num_batches // STEPS) * STEPS
    assert num_batches <= num_steps <= end_of_epoch

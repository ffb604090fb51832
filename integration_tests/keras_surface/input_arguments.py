"""Arguments of fit, evaluate and predict, and their parts."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from .bench import BATCH

METHODS = ("fit", "evaluate", "predict")
CLASS_WEIGHTS = {0: 0.5, 1: 2.0}


class Arguments(NamedTuple):
    """Arguments of a model's methods.

    Attributes:
        fit: Arguments of `fit`; tests add those that all kinds share.
        evaluate: Arguments of `evaluate`.
        predict: Arguments of `predict`.
    """

    fit: dict[str, Any]
    evaluate: dict[str, Any]
    predict: dict[str, Any]


class Kind(NamedTuple):
    """A kind of input.

    Attributes:
        make: Makes the arguments: for our strategy, or for one process, which
            reads what all workers read, one pipeline after the other.
        methods: The methods that take this kind of input.
    """

    make: Callable[[bool], Arguments]
    methods: tuple[str, ...] = METHODS


def dataset(*parts: Any) -> tf.data.Dataset:
    """Returns a dataset with an element for each row."""
    return tf.data.Dataset.from_tensor_slices(parts)


def batched(*parts: Any) -> tf.data.Dataset:
    """Returns a dataset of batches; the last has fewer rows."""
    return dataset(*parts).batch(BATCH)


def same(arguments: dict[str, Any], **fit: Any) -> Arguments:
    """Returns arguments that all three methods take."""
    predict = {k: v for k, v in arguments.items() if k != "y"}
    predict.pop("sample_weight", None)
    return Arguments({**arguments, **fit}, arguments, predict)


def of_fit(**arguments: Any) -> Arguments:
    """Returns arguments of `fit` alone."""
    return Arguments(arguments, {}, {})

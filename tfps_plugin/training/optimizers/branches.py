"""Conditions whose branches change variables and return nothing."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def run_if(
    condition: tf.Tensor,
    then: Callable[[], Any],
    otherwise: Callable[[], Any] = lambda: None,
) -> None:
    """Runs one of two functions.

    Args:
        condition: A boolean scalar.
        then: Runs for True; in a function, both are traced.
        otherwise: Runs for False.
    """
    tf.cond(condition, _with_result(then), _with_result(otherwise))


def _with_result(function: Callable[[], Any]) -> Callable[[], tf.Tensor]:
    """Gives a branch the result that `tf.cond` requires."""

    def branch() -> tf.Tensor:
        function()
        return tf.constant(0)

    return branch

"""Copies of variables, by `copy.deepcopy` and `pickle`.

A copy belongs to the scope in which it is made: it is on parameter servers
again, or in a process that knows nothing about them.
"""

import functools
from typing import Any

import tensorflow as tf


def deep(variable: Any, memo: dict[int, Any]) -> Any:
    """Copies a variable, for `copy.deepcopy`.

    Args:
        variable: Any variable of this package.
        memo: The copies made so far, by the identity of the original.

    Returns:
        A variable of the same value.
    """
    copied = _make(variable.read_value(), **_description(variable))
    memo[id(variable)] = copied
    return copied


def reduced(variable: Any) -> tuple[Any, tuple[()]]:
    """Reduces a variable to its value as an array, for `pickle`."""
    return (
        functools.partial(_make, variable.numpy(), **_description(variable)),
        (),
    )


def _description(variable: Any) -> dict[str, Any]:
    return {
        "name": variable._shared_name,
        "dtype": variable.dtype,
        "trainable": variable.trainable,
        "synchronization": variable.synchronization,
        "aggregation": variable.aggregation,
    }


def _make(value: Any, **description: Any) -> Any:
    return tf.Variable(value, **description)

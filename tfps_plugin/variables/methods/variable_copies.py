"""Copies of variables, by `copy.deepcopy` and `pickle`.

A copy is a variable of the scope that it is made in: on parameter servers
again, or in a process that knows nothing of them.
"""

import functools
from typing import Any

import tensorflow as tf


def deep(variable: Any, memo: dict[int, Any]) -> Any:
    """Copies a variable, for `copy.deepcopy`.

    Args:
        variable: Any of ours.
        memo: What has been copied, by the identity of the original.

    Returns:
        A variable of the same value.
    """
    copied = _make(variable.read_value(), **_description(variable))
    memo[id(variable)] = copied
    return copied


def reduced(variable: Any) -> tuple[Any, tuple[()]]:
    """What `pickle` writes of a variable: its value as an array."""
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

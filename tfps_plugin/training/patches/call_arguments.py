"""Checks the arguments of `compile`, `fit`, `evaluate` and `predict`.

Keras checks some of them after the first epoch, and others never: with a
negative number of steps its loop does nothing, or never ends. Here all are
checked before anything runs. Pure: no TensorFlow.
"""

import operator
from collections.abc import Mapping
from typing import Any

from tfps_plugin import errors

# Both mean "until the input ends": Keras documents -1, and treats 0 like None.
_UNTIL_THE_END = (-1, 0)
_STEPS = ("steps_per_epoch", "validation_steps", "steps")
# Keras accepts any whole number here: the range of epochs may be empty.
_EPOCHS = ("epochs", "initial_epoch")
_SIZES = ("batch_size", "validation_batch_size", "steps_per_execution")


def checked(method: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the numbers among the arguments of a method of a model.

    Args:
        method: The method's name.
        arguments: Its arguments, by name.

    Returns:
        The arguments. Numbers are of class `int`; a number of steps is None
        if it means "until the input ends".

    Raises:
        InputError: If a number has no meaning.
    """
    result = dict(arguments)
    for name, value in arguments.items():
        if value is None:
            continue
        if name in _STEPS:
            result[name] = _steps(method, name, value)
        elif name in _EPOCHS:
            result[name] = _whole(method, name, value, "a whole number")
        elif name in _SIZES:
            result[name] = _positive(method, name, value)
        elif name == "validation_freq":
            result[name] = _frequency(method, value)
    return result


def _steps(method: str, name: str, value: Any) -> int | None:
    expected = "a positive number of steps, or None, 0 or -1 for all input"
    number = _whole(method, name, value, expected)
    if number in _UNTIL_THE_END:
        return None
    if number < 0:
        raise _refusal(method, name, value, expected)
    return number


def _positive(method: str, name: str, value: Any) -> int:
    expected = "a positive whole number"
    number = _whole(method, name, value, expected)
    if number < 1:
        raise _refusal(method, name, value, expected)
    return number


def _frequency(method: str, value: Any) -> int | list[int]:
    name = "validation_freq"
    if isinstance(value, list | tuple | set | frozenset | range):
        try:
            # Keras itself only accepts a list.
            return [operator.index(each) for each in value]
        except TypeError:
            raise _refusal(
                method, name, value, "whole numbers of epochs"
            ) from None
    return _positive(method, name, value)


def _whole(method: str, name: str, value: Any, expected: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise _refusal(method, name, value, expected) from None


def _refusal(
    method: str, name: str, value: Any, expected: str
) -> errors.InputError:
    return errors.InputError(
        f"{method}() cannot use {name}; expected {expected}. Received: "
        f"{name}={value!r} of type {type(value).__name__}. Nothing has run."
    )

"""A variable as an argument of a `tf.function`.

TensorFlow passes the handle of its own variables to the function, and traces
once for all variables of a kind. The handle of our variables is looked up at
call time, through the variable that the function was traced with. So each
variable has a trace of its own, like any other Python object.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class SameVariable(tf.types.experimental.TraceType):
    """The type of one variable, and of nothing else.

    It does not keep the variable alive.
    """

    def __init__(self, variable: Any) -> None:
        """Names the variable.

        Args:
            variable: It has to exist as long as functions of it are called.
        """
        self._variable = weakref.ref(variable)
        self._hash = id(variable)

    def is_subtype_of(self, other: Any) -> bool:
        """Returns whether `other` is the type of the same variable."""
        return bool(self == other)

    def most_specific_common_supertype(
        self, others: Sequence[Any]
    ) -> "SameVariable | None":
        """Returns itself, if all are types of the same variable."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """Returns the variable, as the argument of the traced function."""
        del placeholder_context
        return self._variable()

    def to_tensors(self, value: Any) -> list[tf.Tensor]:
        """Returns no tensors: functions capture what they need."""
        del value
        return []

    def from_tensors(self, tensors: Any) -> Any:
        """Returns the variable."""
        del tensors
        return self._variable()

    def flatten(self) -> list[Any]:
        """Returns no types of tensors; see `to_tensors`."""
        return []

    def cast(self, value: Any, cast_context: Any) -> Any:
        """Returns the variable.

        Raises:
            TypeError: If `value` is anything but this variable.
        """
        del cast_context
        if value is not self._variable():
            raise TypeError(
                f"The function was traced for the variable {self!r}. Received: "
                f"{value!r}. Call the tf.function itself, which is traced for "
                "each variable, or trace it for this one."
            )
        return value

    def __eq__(self, other: object) -> bool:
        mine = self._variable()
        return (
            isinstance(other, SameVariable)
            and mine is not None
            and mine is other._variable()
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        variable = self._variable()
        return "<gone>" if variable is None else repr(variable.name)

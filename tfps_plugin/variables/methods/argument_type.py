"""A variable as an argument of a `tf.function`.

TensorFlow hands a function the handle of such a variable, and traces it once
for all variables of a kind. Ours is looked up when the function is called, by
the variable that it was traced with: so there is a trace for each, as for any
other Python object.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class SameVariable(tf.types.experimental.TraceType):
    """The type of one variable: nothing else is of it.

    It does not keep the variable.
    """

    def __init__(self, variable: Any) -> None:
        """Names the variable.

        Args:
            variable: What has to exist as long as functions of it are called.
        """
        self._variable = weakref.ref(variable)
        self._hash = id(variable)

    def is_subtype_of(self, other: Any) -> bool:
        """Whether it is the type of the same variable."""
        return bool(self == other)

    def most_specific_common_supertype(
        self, others: Sequence[Any]
    ) -> "SameVariable | None":
        """Itself, if all are of the same variable."""
        return self if all(self == other for other in others) else None

    def placeholder_value(self, placeholder_context: Any) -> Any:
        """The variable, which a function that is traced is given."""
        del placeholder_context
        return self._variable()

    def to_tensors(self, value: Any) -> list[tf.Tensor]:
        """Nothing: what a function needs of it, it captures."""
        del value
        return []

    def from_tensors(self, tensors: Any) -> Any:
        """The variable."""
        del tensors
        return self._variable()

    def flatten(self) -> list[Any]:
        """No type of a tensor: see `to_tensors`."""
        return []

    def cast(self, value: Any, cast_context: Any) -> Any:
        """The variable; of another one it is refused.

        Raises:
            TypeError: If `value` is something else.
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

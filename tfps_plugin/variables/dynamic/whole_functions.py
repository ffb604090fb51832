"""Functions that stay whole inside of others."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class WholeFunction:
    """A function whose call is one operation, for TensorFlow and for fusion.

    TensorFlow takes the operations of both branches of a condition into a
    step, and then passes over each of those that the step does not need, one by
    one. In a branch that makes rows there are hundreds. As a function that
    stays whole, they are one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: list[tf.TensorSpec] | None = None,
    ) -> None:
        """Traces nothing yet.

        Args:
            function: Takes and returns tensors.
            signature: Its arguments; None: those of each call.
        """
        self._function = tf.function(
            function,
            signature,
            autograph=False,
            experimental_attributes={"_noinline": True},
        )

    def __call__(self, *arguments: tf.Tensor) -> Any:
        """Calls the function, which is traced if need be."""
        # Called by itself, it would look to TensorFlow as if one function were
        # traced again and again, where many tables have one trace each.
        return self._function.get_concrete_function(*arguments)(*arguments)

    def branch(self, *arguments: tf.Tensor) -> Callable[[], Any]:
        """Returns a branch that calls the function."""
        return lambda: self(*arguments)

"""What a container needs to pass for a tensor inside a `keras.Variable`."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin._compat import tensorflow_variables as compat


class TensorProtocol(
    tf.__internal__.types.Tensor, tf.__internal__.tracking.Trackable
):
    """Arithmetic, conversion and NumPy access on top of `read_value()`."""

    # Gradient tapes then ask for `.handle` as they do with a tf.Variable.
    _should_act_as_resource_variable = True

    def read_value(self) -> tf.Tensor:
        """The whole value as one dense tensor."""
        raise NotImplementedError  # every subclass has its own

    def value(self) -> tf.Tensor:
        """The whole value as one dense tensor."""
        return self.read_value()

    def numpy(self) -> np.ndarray:
        """The whole value as an array in this process."""
        return self.read_value().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """The whole value as an array, for NumPy's own functions."""
        return np.asarray(self.numpy(), dtype)

    def __tf_tensor__(
        self, dtype: Any = None, name: str | None = None
    ) -> tf.Tensor:
        """The whole value, for TensorFlow's own functions."""
        value = self.read_value()
        if dtype is not None and tf.as_dtype(dtype) != value.dtype:
            value = tf.cast(value, dtype)
        return value

    def __hash__(self) -> int:
        """By identity, as a variable's."""
        return id(self)


def _forward(operator: str) -> Any:
    tensor_operator = getattr(tf.Tensor, operator)

    def apply(self: TensorProtocol, *args: Any) -> Any:
        args = tuple(
            arg.read_value() if isinstance(arg, TensorProtocol) else arg
            for arg in args
        )
        return tensor_operator(self.read_value(), *args)

    apply.__name__ = operator
    return apply


# As for tf.Variable: every operator works on the value; equality and hashing
# stay those of Python objects, which sets and dictionaries rely on.
for _operator in tf.Tensor.OVERLOADABLE_OPERATORS:
    if _operator not in ("__eq__", "__ne__"):
        setattr(TensorProtocol, _operator, _forward(_operator))

compat.register_tensor_conversion(
    TensorProtocol,
    lambda value, dtype=None, name=None, as_ref=False: value.__tf_tensor__(
        dtype
    ),
)

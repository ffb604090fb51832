"""Interface of a `tf.Variable` for containers of variables."""

from typing import Any
from typing import NoReturn

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.methods import variable_copies


class TensorProtocol(tf.Variable, tf.__internal__.types.Tensor):
    """The part of `tf.Variable` that follows from reading and assigning.

    A subclass defines `read_value`, `assign`, `shape`, `dtype`, `name` and
    `trainable`. Operators, comparisons and hashing are those that
    `tf.Variable` itself defines: `==` is elementwise, and a variable is the
    key of a dictionary by its `ref()`.
    """

    # The metaclass would offer our arguments to variable creators.
    _variable_call = None

    # Gradient tapes then ask for `.handle` as they do with a tf.Variable.
    _should_act_as_resource_variable = True

    # Like the attributes of a resource variable that was made eagerly.
    constraint = None
    initializer = None

    # Reading.

    def read_value(self) -> tf.Tensor:
        """Returns the whole value as one dense tensor."""
        raise NotImplementedError  # every subclass has its own

    def read_value_no_copy(self) -> tf.Tensor:
        """Returns the whole value as one dense tensor."""
        return self.read_value()

    def value(self) -> tf.Tensor:
        """Returns the whole value as one dense tensor."""
        return self.read_value()

    def numpy(self) -> np.ndarray:
        """Returns the whole value as an array in this process."""
        return self.read_value().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Returns the whole value as an array, for NumPy's own functions."""
        return np.asarray(self.numpy(), dtype)

    def __tf_tensor__(
        self, dtype: Any = None, name: str | None = None
    ) -> tf.Tensor:
        """Returns the whole value, for TensorFlow's own functions.

        Raises:
            ValueError: If another dtype is requested.
        """
        del name
        if dtype is not None and not self.dtype.is_compatible_with(dtype):
            raise ValueError(
                f"The variable {self.name!r} is not a tensor of another dtype; "
                f"expected {self.dtype.name}. Received: dtype="
                f"{tf.as_dtype(dtype).name}. Convert it with tf.cast()."
            )
        return self.read_value()

    def __bool__(self) -> bool:
        return bool(self.read_value())

    def __int__(self) -> int:
        return int(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __complex__(self) -> complex:
        return complex(self.numpy())

    # Attributes.

    def set_shape(self, shape: Any) -> None:
        """Checks that the variable has the given shape.

        Raises:
            ValueError: If it has another.
        """
        self.shape.assert_is_compatible_with(shape)

    @property
    def op(self) -> NoReturn:
        """Not available for variables that are made eagerly."""
        raise _attribute_error("op")

    @property
    def graph(self) -> NoReturn:
        """Not available for variables that are made eagerly."""
        raise _attribute_error("graph")

    # Methods for sessions of TensorFlow 1.

    @property
    def initial_value(self) -> NoReturn:
        """Not kept by variables that are made eagerly."""
        raise _runtime_error("initial_value", "variable.read_value()")

    @property
    def create(self) -> NoReturn:
        """Not available for variables that are made eagerly."""
        raise _runtime_error("create", "variable.assign(value)")

    def eval(self, session: Any = None) -> NoReturn:
        """Raises an error: there is no session."""
        del session
        raise _runtime_error("eval()", "variable.numpy()")

    def to_proto(self, export_scope: str | None = None) -> NoReturn:
        """Raises an error: no graph has the variable."""
        del export_scope
        raise _runtime_error("to_proto()", "tf.train.Checkpoint")

    @staticmethod
    def from_proto(
        variable_def: Any, import_scope: str | None = None
    ) -> NoReturn:
        """Raises an error: no graph has the variable."""
        del variable_def, import_scope
        raise _runtime_error("from_proto()", "tf.train.Checkpoint")

    def load(self, value: Any, session: Any = None) -> None:
        """Assigns a value, as `tf.Variable.load`."""
        del session
        self.assign(value)

    def initialized_value(self) -> tf.Tensor:
        """Returns the value, which a variable has as soon as it exists."""
        with tf.init_scope():
            return self.read_value()

    def count_up_to(self, limit: Any) -> NoReturn:
        """Raises an error: only scalars count."""
        raise errors.UnsupportedError(
            "count_up_to() counts with a single integer; expected a variable "
            f"of shape (). Received: {self.name!r} of shape "
            f"{tuple(self.shape)}, limit={limit!r}. Use tf.data.Dataset.range, "
            "or assign_add()."
        )

    # Copies.

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return variable_copies.deep(self, memo)

    def __reduce__(self) -> Any:
        return variable_copies.reduced(self)

    def __iadd__(self, other: Any) -> NoReturn:
        raise _in_place_error("+=", "assign_add(value)")

    def __isub__(self, other: Any) -> NoReturn:
        raise _in_place_error("-=", "assign_sub(value)")

    def __imul__(self, other: Any) -> NoReturn:
        raise _in_place_error("*=", "assign(variable * value)")

    def __itruediv__(self, other: Any) -> NoReturn:
        raise _in_place_error("/=", "assign(variable / value)")

    def __ipow__(self, other: Any) -> NoReturn:
        raise _in_place_error("**=", "assign(variable ** value)")


def _attribute_error(what: str) -> AttributeError:
    return AttributeError(
        f"A variable that was made eagerly has no `{what}`; it belongs to no "
        "graph. Read its value instead."
    )


def _runtime_error(what: str, instead: str) -> RuntimeError:
    return RuntimeError(
        f"`{what}` of a variable belongs to TensorFlow 1 and is not there when "
        f"operations run eagerly. Use {instead} instead."
    )


def _in_place_error(operator: str, instead: str) -> RuntimeError:
    return RuntimeError(
        f"`variable {operator} value` is not supported for variables. Use "
        f"`variable.{instead}` to change the variable, or an operator that "
        "gives a new tensor."
    )


compat.register_tensor_conversion(
    TensorProtocol,
    lambda value, dtype=None, name=None, as_ref=False: value.__tf_tensor__(
        dtype
    ),
)

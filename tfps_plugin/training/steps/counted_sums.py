"""What single calls of workers have counted, added up on the chief."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin.variables.worker_local import WorkerLocalVariable


class CountedSums:
    """States of metrics that are sums, of which every call counts its own.

    A worker's copy of a state holds what all calls on it have counted since
    the last reset; of a call that fails half-way, or of a worker that dies,
    nobody could say what its copy should be. So here every call begins at
    zero and returns what it came to, and the chief adds up what it is told by
    calls that came to their end, each once. Then every example counts exactly
    once, whatever happens to workers.

    The sums of a call travel in one tensor for each dtype.

    Threading: used by the thread that runs `evaluate` alone.
    """

    def __init__(self, variables: Sequence[WorkerLocalVariable]) -> None:
        """Takes the states.

        Args:
            variables: Worker-local sums.
        """
        self._by_dtype: dict[tf.DType, list[WorkerLocalVariable]] = {}
        for variable in variables:
            self._by_dtype.setdefault(variable.dtype, []).append(variable)

    @classmethod
    def of_metrics(cls, model: keras.Model) -> "CountedSums":
        """The states of a model's metrics that are sums."""
        return cls(sums_of_metrics(model))

    def zero(self) -> None:
        """In a function: begins at zero."""
        for variables in self._by_dtype.values():
            for variable in variables:
                variable.assign(tf.zeros(variable.shape, variable.dtype))

    def pack(self) -> list[tf.Tensor]:
        """In a function: what was counted, one vector for each dtype."""
        return [
            tf.concat(
                [tf.reshape(v.read_value(), [-1]) for v in variables], axis=0
            )
            for variables in self._by_dtype.values()
        ]

    def commit(self, counted: Sequence[np.ndarray]) -> None:
        """On the chief: the value of each is what it was, and this.

        What lanes have in their copies is dropped: those who count have
        returned it. To be called when no call runs any more.

        Args:
            counted: What `pack` gave, perhaps added up.
        """
        for variables, packed in zip(
            self._by_dtype.values(), counted, strict=True
        ):
            sizes = [v.shape.num_elements() for v in variables]
            parts = np.split(packed, np.cumsum(sizes)[:-1])
            for variable, part in zip(variables, parts, strict=True):
                variable.forget_copies()
                part = part.reshape(variable.shape)
                if variable.dtype == tf.bool:
                    variable.assign(variable.read_value() | part)
                else:
                    variable.assign_add(part)


def sums_of_metrics(model: keras.Model) -> list[WorkerLocalVariable]:
    """The states of a model's metrics that are sums, each once.

    Keras lists a metric of a layer inside of a layer, or one that is an
    attribute and compiled, several times.
    """
    states = {
        id(variable.value): variable.value
        for variable in model.metrics_variables
        if isinstance(variable.value, WorkerLocalVariable)
        and variable.value.is_sum
    }
    return [*states.values()]


def fetch(counted: Sequence[tf.Tensor]) -> list[np.ndarray]:
    """Brings what a call has counted here; called by closures."""
    return [part.numpy() for part in counted]


def add(first: list[np.ndarray], second: list[np.ndarray]) -> list[np.ndarray]:
    """What two calls have counted together; of booleans: whether any did.

    Args:
        first: Fetched results of `CountedSums.pack`; empty: nothing yet.
        second: Likewise.
    """
    if not first or not second:
        return first or second
    return [a + b for a, b in zip(first, second, strict=True)]

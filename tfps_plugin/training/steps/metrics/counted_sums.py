"""What single calls of workers have counted, put together on the chief."""

from collections.abc import Mapping
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.states.merge_rule import MergeRule

# What calls have counted: by the value of a rule, one vector for each dtype.
Counted = dict[str, list[np.ndarray]]


class CountedSums:
    """States of metrics of which every call counts its own part.

    These are sums, maxima and minima. A worker's copy of a state holds what
    all calls on it have counted since the last reset; of a call that fails
    half-way, or of a worker that dies, nobody could say what its copy should
    be. So here every call begins at the neutral element of the state's rule
    and returns what it came to, and the chief puts together what it is told by
    calls that came to their end, each once. Then every example counts exactly
    once, whatever happens to workers.

    What a call has counted travels in one tensor for each rule and dtype.

    Threading: used by the thread that runs `evaluate` alone.
    """

    def __init__(self, variables: Sequence[WorkerLocalVariable]) -> None:
        """Takes the states.

        Args:
            variables: Worker-local, with rules that reduce.
        """
        self._groups: dict[str, dict[tf.DType, list[WorkerLocalVariable]]] = {}
        for variable in variables:
            of_rule = self._groups.setdefault(variable.rule.value, {})
            of_rule.setdefault(variable.dtype, []).append(variable)

    @classmethod
    def of_metrics(cls, model: keras.Model) -> "CountedSums":
        """The states of a model's metrics that calls can count."""
        return cls(countable_states(model))

    def begin(self) -> None:
        """In a function: begins at the neutral elements."""
        for of_rule in self._groups.values():
            for variables in of_rule.values():
                for variable in variables:
                    variable.assign(variable.neutral())

    def pack(self) -> dict[str, list[tf.Tensor]]:
        """In a function: what was counted; see `Counted`."""
        return {
            rule: [
                tf.concat(
                    [tf.reshape(v.read_value(), [-1]) for v in variables],
                    axis=0,
                )
                for variables in of_rule.values()
            ]
            for rule, of_rule in self._groups.items()
        }

    def commit(self, counted: Counted) -> None:
        """On the chief: takes in what calls have counted.

        What lanes have in their copies is dropped: those who count have
        returned it. To be called when no call runs any more.

        Args:
            counted: What `pack` gave, perhaps put together.
        """
        for rule, of_rule in self._groups.items():
            for variables, packed in zip(
                of_rule.values(), counted[rule], strict=True
            ):
                sizes = [v.shape.num_elements() for v in variables]
                parts = np.split(packed, np.cumsum(sizes)[:-1])
                for variable, part in zip(variables, parts, strict=True):
                    variable.forget_copies()
                    variable.take_over(part.reshape(variable.shape))


def countable_states(model: keras.Model) -> list[WorkerLocalVariable]:
    """The states of a model's metrics whose rules reduce, each once.

    Keras lists a metric of a layer inside of a layer, or one that is an
    attribute and compiled, several times.
    """
    states = {
        id(variable.value): variable.value
        for variable in model.metrics_variables
        if isinstance(variable.value, WorkerLocalVariable)
        and variable.value.rule.reduces
    }
    return [*states.values()]


def fetch(counted: Mapping[str, Sequence[tf.Tensor]]) -> Counted:
    """Brings what a call has counted here; called by closures."""
    return {
        rule: [part.numpy() for part in parts]
        for rule, parts in counted.items()
    }


def add(first: Counted, second: Counted) -> Counted:
    """What two calls have counted together.

    Args:
        first: Fetched results of `CountedSums.pack`; empty: nothing yet.
        second: Likewise.
    """
    if not first or not second:
        return first or second
    return {
        rule: [
            MergeRule(rule).combine(a, b)
            for a, b in zip(parts, second[rule], strict=True)
        ]
        for rule, parts in first.items()
    }

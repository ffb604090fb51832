"""Metric states of single calls of workers, merged on the chief."""

from collections.abc import Mapping
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.states.merge_rule import MergeRule

# States of calls: by the value of a rule, one vector for each dtype.
Counted = dict[str, list[np.ndarray]]


class CountedSums:
    """Metric states that every call counts by itself.

    These are sums, maxima and minima. A worker's copy of a state accumulates
    all calls on it since the last reset; if a call fails halfway, or a worker
    dies, the correct value of its copy is unknown. So here every call begins
    at the neutral element of the state's rule and returns its result. The
    chief merges the results of completed calls, each once. Then every example
    counts exactly once, whatever happens to workers.

    The result of a call travels in one tensor for each rule and dtype.

    Threading: only the thread that runs `evaluate` uses it.
    """

    def __init__(self, variables: Sequence[WorkerLocalVariable]) -> None:
        """Takes the states.

        Args:
            variables: Worker-local variables whose rules reduce.
        """
        self._groups: dict[str, dict[tf.DType, list[WorkerLocalVariable]]] = {}
        for variable in variables:
            of_rule = self._groups.setdefault(variable.rule.value, {})
            of_rule.setdefault(variable.dtype, []).append(variable)

    @classmethod
    def of_metrics(cls, model: keras.Model) -> "CountedSums":
        """Creates the sums for the countable states of a model's metrics."""
        return cls(countable_states(model))

    def begin(self) -> None:
        """Sets the states to neutral elements; for use in a function."""
        for of_rule in self._groups.values():
            for variables in of_rule.values():
                for variable in variables:
                    variable.assign(variable.neutral())

    def pack(self) -> dict[str, list[tf.Tensor]]:
        """Returns the states, see `Counted`; for use in a function."""
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
        """Adds the results of calls to the chief's values.

        Drops the copies of lanes, whose values the calls have returned. Only
        call it while no call runs.

        Args:
            counted: Fetched results of `pack`, perhaps merged.
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
    """Returns the states of a model's metrics whose rules reduce, each once.

    Keras lists some metrics several times: those of a layer inside a layer, or
    those that are both an attribute and compiled.
    """
    states = {
        id(variable.value): variable.value
        for variable in model.metrics_variables
        if isinstance(variable.value, WorkerLocalVariable)
        and variable.value.rule.reduces
    }
    return [*states.values()]


def fetch(counted: Mapping[str, Sequence[tf.Tensor]]) -> Counted:
    """Fetches the result of a call; called by closures."""
    values = iter(
        worker_fetches.arrays([p for parts in counted.values() for p in parts])
    )
    return {
        rule: [next(values) for _ in parts] for rule, parts in counted.items()
    }


def add(first: Counted, second: Counted) -> Counted:
    """Merges the results of two calls.

    Args:
        first: Fetched results of `CountedSums.pack`; may be empty.
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

"""Explanations of the messages that steps send between tasks."""

import dataclasses
import weakref
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfps_plugin.strategy.chief_runs import NotAStepError
from tfps_plugin.transport import fusion
from tfps_plugin.transport.explanation import Explanation
from tfps_plugin.transport.explanation import Job


class Explanations:
    """Explanations of the functions that workers run, by their owners.

    An owner, such as a model, is not kept alive.
    """

    def __init__(self) -> None:
        """Starts without functions."""
        self._of_owners: weakref.WeakKeyDictionary[Any, list[Explanation]] = (
            weakref.WeakKeyDictionary()
        )

    def note(self, owner: Any, function: Any, runs_on: Job = "worker") -> None:
        """Adds a function to the steps of its owner.

        Args:
            owner: A model, or another object whose steps `function` runs.
            function: A concrete function, as it was traced.
            runs_on: Job of the task that runs it.
        """
        explanation = fusion.explain(function, runs_on)
        self._of_owners.setdefault(owner, []).append(explanation)

    def of_owner(self, owner: Any) -> Explanation | None:
        """Returns the explanation of all steps of an owner; None: no step."""
        try:
            known = self._of_owners.get(owner, [])
        except TypeError:
            # It does not support weak references, so it owns no step.
            return None
        return _joined(known) if known else None


def explain(
    strategy: Any,
    known: Explanations,
    step: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    print_fn: Callable[[str], Any] | None,
) -> Explanation:
    """Explains a step for `ParameterServerStrategy.explain`.

    Args:
        strategy: The strategy under which a `tf.function` is traced.
        known: Explanations of the steps that ran under it.
        step: A model, a `tf.function` or a concrete function.
        args: Positional arguments of a `tf.function`, or their specs.
        kwargs: Keyword arguments of a `tf.function`, or their specs.
        print_fn: Receives the table as one string; None prints nothing.

    Returns:
        The explanation.

    Raises:
        ValueError: If nothing is known of `step`.
    """
    if isinstance(step, tf.types.experimental.PolymorphicFunction):
        step = _traced(strategy, step, args, kwargs or {})
    explanation = (
        _of_function(strategy, step)
        if isinstance(step, tf.types.experimental.ConcreteFunction)
        else known.of_owner(step)
    )
    if explanation is None:
        raise ValueError(
            "Expected a tf.function, a concrete function, or a model that fit, "
            "evaluate or predict have run on this cluster with communication "
            f"fusion. Received: step={step!r}, under a strategy with "
            f"communication={strategy.communication!r}. Run a few steps of the "
            "model first."
        )
    if print_fn is None:
        return explanation
    print_fn(str(explanation))
    # Otherwise a notebook would show the value of its cell once more.
    return dataclasses.replace(explanation, is_printed=True)


def _of_function(
    strategy: Any, function: tf.types.experimental.ConcreteFunction
) -> Explanation:
    """Explains a function, and what the chief does beside its step."""
    steps = strategy.scheduled_steps
    if steps is None:
        return fusion.explain(function)
    with strategy.scope(), tf.device(None):
        of_chief = steps.for_chief(function)
    return _joined(
        [
            fusion.explain(steps.for_workers(function)),
            *(fusion.explain(each, "chief") for each in of_chief),
        ]
    )


def _joined(explanations: Sequence[Explanation]) -> Explanation:
    held = {one for each in explanations for one in each.held}
    return Explanation(
        tuple(body for each in explanations for body in each.bodies),
        tuple(sorted(held)),
    )


def _traced(
    strategy: Any, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tf.types.experimental.ConcreteFunction:
    """Returns the trace of a function, as one that a program schedules."""
    runs = strategy.extended.chief_runs
    with strategy.scope(), runs.traced_for_workers(), tf.device(None):
        try:
            with runs.looking_for_steps():
                return function.get_concrete_function(*args, **kwargs)
        except NotAStepError:
            return function.get_concrete_function(*args, **kwargs)

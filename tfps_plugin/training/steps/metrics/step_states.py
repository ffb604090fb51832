"""States that a model's step assigns, and ways to keep them correct."""

import logging
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.training import step_build
from tfps_plugin.training.optimizers import update_counts
from tfps_plugin.training.optimizers.catch_up import caught_up_tables
from tfps_plugin.variables.kinds.late_bound import LateBoundVariable
from tfps_plugin.variables.kinds.mirrored_scalar import MirroredScalar
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.kinds.sharded_variable import ShardedVariable
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable
from tfps_plugin.variables.states import copies
from tfps_plugin.variables.states import ps_rules
from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.states.merge_rule import MergeRule

_logger = logging.getLogger("tfps_plugin.training")

_SHOWN = 5


class StepStates:
    """Determines, before a step runs, the needs of its states.

    A metric state whose copies cannot be merged moves to a parameter server,
    for all lanes. If concurrent assignments would make a state there wrong, the
    steps must follow one another.

    Threading: only the thread that traces uses it.

    Attributes:
        in_order: Descriptions of the variables that require steps to follow
            one another in the order of the input; empty: steps may overlap.
    """

    def __init__(self, model: keras.Model) -> None:
        """Takes the model.

        Args:
            model: The model that has the step.
        """
        self._model = model
        self.in_order: tuple[str, ...] = ()
        self._announced: tuple[str, ...] = ()
        self._copied: list[WorkerLocalVariable] = []

    @property
    def are_outdated(self) -> bool:
        """True if another step has moved states that this one uses."""
        return any(state.is_replaced for state in self._copied)

    def settle(self, trace: Callable[[], tf.Graph]) -> None:
        """Finds the rule of every state that a step assigns.

        Args:
            trace: Traces the step (again, if states have moved), and returns
                its graph.

        Raises:
            UnsupportedError: If a state cannot be kept correct.
        """
        flow = Flow(trace())
        while homeless := copies.settle(flow):
            self._move(homeless)
            flow = Flow(trace())
        self._copied = copies.of(flow)
        _refuse_foreign(flow)
        found = self._only_in_order(flow)
        if not found:
            return
        self.in_order = tuple(dict.fromkeys([*self.in_order, *found]))
        last = [
            state for state in copies.of(flow) if state.rule is MergeRule.LAST
        ]
        if last:
            # Now there is a last batch, and any lane may run it.
            self._move(last)
            self._copied = copies.of(Flow(trace()))

    def require_any_order(self) -> None:
        """Refuses a step that must see the input in order.

        Raises:
            UnsupportedError: If the step must.
        """
        if self.in_order:
            raise errors.UnsupportedError(
                f"The model {self._model.name!r} has states that pass from one "
                "batch to the next, which only steps that follow one another "
                "in the order of the input get right; every worker would read "
                f"a stream of its own. Received: {_listed(self.in_order)}, "
                "with a tfps.DatasetCreator. Give a tf.data.Dataset or arrays, "
                "which the chief reads in order (workers then take turns); or "
                "change the layer: stateful=False, or a state that steps add "
                "to or assign from itself element by element. See "
                "docs/state.md."
            )

    def require_whole_batches(self) -> None:
        """Refuses a step that passes states from one batch to the next.

        Raises:
            UnsupportedError: If the step does.
        """
        if self.in_order:
            raise errors.UnsupportedError(
                f"The model {self._model.name!r} has states that pass from one "
                "batch to the next, and a synchronous step cuts each batch for "
                f"the workers. Received: {_listed(self.in_order)}, with "
                "consistency=tfps.Sync(). Train with tfps.Async(), where steps "
                "then follow one another; or change the layer: stateful=False, "
                "or a state that steps add to. See docs/state.md."
            )

    def require_overlap(self) -> None:
        """Refuses a step that cannot run beside another one.

        Raises:
            UnsupportedError: If the step cannot.
        """
        if self.in_order:
            raise errors.UnsupportedError(
                f"The model {self._model.name!r} has states that pass from one "
                "batch to the next, so its steps have to follow one another, "
                "and with bounded staleness all workers make steps at the same "
                f"time. Received: {_listed(self.in_order)}, with "
                "consistency=tfps.BoundedStaleness(...). Train with "
                "tfps.Async(), where workers take turns; or change the layer: "
                "stateful=False, or a state that steps add to. See "
                "docs/state.md."
            )

    def announce_order(self) -> None:
        """Warns, once, that steps follow one another if they must."""
        if self.in_order == self._announced:
            return
        self._announced = self.in_order
        _logger.warning(
            "The steps of %s follow one another, in the order of the input, "
            "and workers take turns: what they assign to %s cannot be put "
            "together where steps overlap. See docs/state.md.",
            self._model.name,
            _listed(self.in_order),
        )

    def _move(self, states: list[WorkerLocalVariable]) -> None:
        """Moves states with copies to parameter servers."""
        strategy = self._model.distribute_strategy
        holders = {
            id(variable.value): variable
            for variable in [
                *self._model.metrics_variables,
                *self._model.variables,
            ]
        }
        for state in states:
            holder = holders.get(id(state))
            if holder is None:
                raise copies.without_rule(state)
            _logger.info(
                "The metric state %s is kept on a parameter server: nothing "
                "says how copies of it would be put together.",
                state.path,
            )
            keras_compat.set_value(holder, strategy.move_to_ps(state))

    def _only_in_order(self, flow: Flow) -> list[str]:
        optimizers = step_build.optimizers_of(self._model)
        # Always correct: the number of a step is assigned under the lock, and
        # the rows computed from it are part of the same update.
        catching_up = _ids_of(
            value
            for optimizer in optimizers
            for value in caught_up_tables.variables_of(optimizer)
        )
        # Likewise: changed under a lock only.
        counting = _ids_of(
            value
            for counts in update_counts.known(optimizers)
            for value in counts.variables
        )
        on_ps = [
            one
            for one in flow.variables
            if isinstance(one, RemoteVariable)
            and not isinstance(one, MirroredScalar)
            and id(one) not in catching_up | counting
        ]
        optimized = _ids_of(
            variable.value
            for optimizer in optimizers
            for variable in optimizer.variables
        )
        return [
            self._described(variable)
            for variable in ps_rules.of_one_step(flow, on_ps, optimized)
        ]

    def _described(self, variable: Any) -> str:
        """Describes a variable and the layer that has it."""
        owner = None
        for layer in keras_compat.layers_within(self._model):
            # Inner layers come after the layers that contain them.
            if any(variable is own for own in _variables_of(layer)):
                owner = layer
        if owner is None or owner is self._model:
            return repr(variable.path)
        return f"{variable.path!r} of the layer {owner.name!r}"


def _refuse_foreign(flow: Flow) -> None:
    """Refuses steps that assign variables on the chief.

    Raises:
        VariableCreationError: If a step does.
    """
    for write in flow.writes:
        if not isinstance(write.variable, LateBoundVariable):
            raise errors.VariableCreationError(
                "A step assigns a variable that was created outside "
                "strategy.scope(): it is on the chief, where what workers "
                "assign at the same time would be lost. Received: "
                f"variable={write.variable.name!r}. Create it inside `with "
                "strategy.scope():`."
            )


def lost_place() -> errors.WorkerLostError:
    """Returns the error for an interrupted call with states for later calls."""
    return errors.WorkerLostError(
        "A worker was lost while it ran steps whose states pass from one batch "
        "to the next, and nobody knows how many of them it had made; to make "
        "them again would give wrong numbers. Received: a call begun for the "
        "second time. Reset the states (such as layer.reset_state()) and call "
        "again."
    )


def _variables_of(layer: Any) -> Iterator[Any]:
    """Yields TensorFlow's variables behind those of a layer.

    Includes variables that Keras does not list, such as states of recurrent
    layers.
    """
    for one in (*layer.variables, *_leaves(list(vars(layer).values()))):
        value = one.value if isinstance(one, keras.Variable) else one
        yield value
        yield from _shards(value)


def _leaves(value: Any) -> Iterator[Any]:
    """Yields the leaves of nested lists, tuples and dictionaries."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _ids_of(values: Iterable[Any]) -> set[int]:
    """Returns the ids of variables and of their shards."""
    return {id(each) for value in values for each in (value, *_shards(value))}


def _shards(value: Any) -> Sequence[Any]:
    return value.variables if isinstance(value, ShardedVariable) else ()


def _listed(descriptions: tuple[str, ...]) -> str:
    shown = ", ".join(descriptions[:_SHOWN])
    more = len(descriptions) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown

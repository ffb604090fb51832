"""Variables of which every lane has its own copy: metric states.

A metric state on a parameter server would be read and assigned by all workers
at once, and lose what they add in between; Keras writes
`state.assign(state + x)`. A copy of its own for every lane is exact, and
costs no message at all. The chief puts the copies together when it reads.

How they are put together says the variable's rule (`MergeRule`): that of its
`aggregation`, if the program gave one, or else the one that is found in the
operations that assign it, when a step is traced (`states.local_rules`).
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import tensorflow_saving
from tfps_plugin._compat import tensorflow_variables as compat
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.kinds.late_bound import on_the_chief
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_local_handle import AssignedFlag
from tfps_plugin.variables.per_worker.worker_local_handle import (
    WorkerLocalHandle,
)
from tfps_plugin.variables.states import aggregations
from tfps_plugin.variables.states import merging
from tfps_plugin.variables.states.merge_rule import MergeRule

_logger = logging.getLogger(__name__)


class WorkerLocalVariable(WorkerLocalHandle):
    """A metric state: every lane assigns its own copy, exactly.

    What the chief reads depends on the rule; see `MergeRule`. Copies of sums,
    maxima and minima begin at a neutral element, and the chief's own value
    counts beside them. Other copies begin at the chief's value, and only those
    count that were assigned since the chief last assigned all; its own value
    if none was.

    What the chief assigns replaces them all. The copies of a worker that was
    lost are gone: what it had counted since they were last brought to the
    chief, or dropped, is not in the sum.

    Threading: a lane runs one closure at a time and nobody else touches its
    copy. The chief's reads are exact when no closure is running.
    """

    def __init__(
        self,
        initial_value: tf.Tensor,
        name: str,
        *,
        synchronization: tf.VariableSynchronization = (
            tf.VariableSynchronization.ON_READ
        ),
        aggregation: tf.VariableAggregation = tf.VariableAggregation.SUM,
        rule_is_given: bool = False,
    ) -> None:
        """Makes the chief's own part, with `initial_value`.

        Args:
            initial_value: Value on the chief.
            name: Name shown to the user.
            synchronization: As in `tf.Variable`.
            aggregation: How the chief puts the copies together.
            rule_is_given: Whether the program has asked for a sum. If not, it
                is what Keras says of every state of a metric, and the
                operations that assign the state say more.

        Raises:
            VariableCreationError: If it is not said how, or values of that
                dtype have no mean.
        """
        rule = aggregations.rule_of(
            initial_value.dtype, name, synchronization, aggregation
        )
        super().__init__(
            initial_value.shape,
            initial_value.dtype,
            name,
            trainable=False,
            per_lane=True,
            synchronization=synchronization,
            aggregation=aggregation,
        )
        self.path = name
        self._rule = rule
        self._rule_is_given = rule_is_given or (self._rule is not MergeRule.SUM)
        self._is_settled = self._rule_is_given
        self._was_assigned = None if self._rule.reduces else AssignedFlag(name)
        # What holds the state in the place of the copies, if anything does.
        self._instead: RemoteVariable | None = None
        self._are_neutral = False
        self.assign(initial_value)

    @property
    def rule(self) -> MergeRule:
        """How the chief puts the copies together."""
        return self._rule

    @property
    def rule_is_given(self) -> bool:
        """Whether the program has said the rule."""
        return self._rule_is_given

    @property
    def is_settled(self) -> bool:
        """Whether the program or a traced function has said the rule."""
        return self._is_settled

    def settle(self, rule: MergeRule) -> None:
        """Says how copies are put together, before a function uses them.

        Args:
            rule: What the operations of a step ask for.

        Raises:
            InternalError: If it has another rule already.
        """
        if self._is_settled:
            if rule is not self._rule:
                raise errors.InternalError(
                    f"The metric state {self.path!r} is merged as "
                    f"{self._rule.value!r} and was to be merged otherwise. "
                    f"Received: rule={rule.value!r}. Please report this."
                )
            return
        self._is_settled = True
        if rule is not self._rule:
            value = self.numpy()
            self._rule = rule
            self._was_assigned = (
                None if rule.reduces else AssignedFlag(self.path)
            )
            self._forget_copies()
            self.assign(value)

    @property
    def is_replaced(self) -> bool:
        """Whether functions that use it have to be traced anew."""
        return self._instead is not None

    def replace_by(self, variable: RemoteVariable) -> None:
        """Has all lanes and the chief use one variable in its place.

        Functions that were traced before, and run on the chief, go on with
        that.

        Args:
            variable: On a ps; it has the value of all.
        """
        self._forget_copies()
        self._instead = variable
        # Who has the new one keeps this one, too, which functions look up.
        variable.stands_for = self

    def _build_copy(self, context: DispatchContext) -> RemoteVariable:
        copy = super()._build_copy(context)
        with tf.device(context.cpu_device):
            copy.assign(self._initial_copy(context))
        return copy

    def _handle_now(self) -> tf.Tensor:
        if self._instead is not None:
            return self._instead._handle_now()
        if not on_the_chief():
            self._are_neutral = False
        return super()._handle_now()

    def _weakly(
        self, look_up: Callable[[Any], tf.Tensor]
    ) -> Callable[[], tf.Tensor]:
        """A function of the chief finds the value of all; see `_gather`."""

        def look_up_gathered(variable: Any) -> tf.Tensor:
            if on_the_chief():
                variable._gather()
            return look_up(variable)

        return super()._weakly(look_up_gathered)

    def _gather(self) -> None:
        """Takes what lanes have into the chief's own value.

        What a function does to the state on the chief, such as to reset it,
        is done to all of it then. No closure may be running.
        """
        if self._instead is not None or not self._resident.existing():
            return
        steps_in_flight.finish()
        if self._are_neutral or self._rule is MergeRule.CONSTANT:
            return
        self.assign(self.read_value())

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor:
        if self._rule.reduces:
            return self.neutral()
        return compat.read_resource(self.own_handle, self._dtype)

    def neutral(self) -> tf.Tensor:
        """The value of a copy that changes nothing."""
        return merging.neutral(self._rule, self._shape, self._dtype)

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        value = super()._read_variable_op(no_copy)
        if not on_the_chief():
            return value
        return self._put_together(value, self._read_copies())

    def _read_copies(self) -> list[tf.Tensor]:
        """The copies that count, in the order of lanes."""
        if self._rule is MergeRule.CONSTANT:
            return []
        values = []
        for lane_index, copy in self.copies_by_lane().items():
            try:
                if self._counts(lane_index):
                    values.append(copy.read_value())
            except errors.ParameterServerLostError:
                # Not a ps: a copy is on the worker that adds to it.
                _logger.warning(
                    "A worker died before its share of %s was read; what it "
                    "counted since the last reset is missing.",
                    self.name,
                )
        return values

    def _counts(self, lane_index: int) -> bool:
        """Whether the value of all depends on a lane's copy."""
        flag = self._was_assigned
        return flag is None or flag.is_set(lane_index)

    def _put_together(
        self, own: tf.Tensor, copies: list[tf.Tensor]
    ) -> tf.Tensor:
        """What the chief sees.

        Args:
            own: The chief's own value.
            copies: Those of lanes.
        """
        if self._rule.reduces:
            return functools.reduce(
                lambda a, b: merging.combined(self._rule, a, b), copies, own
            )
        if not copies:
            return own
        if self._rule is MergeRule.MEAN:
            return tf.add_n(copies) / len(copies)
        return copies[0]

    def _reads_more_than_own(self) -> bool:
        return on_the_chief() or super()._reads_more_than_own()

    def gather_own_value(self) -> None:
        """On the chief: replaces the copies by what they are together."""
        if on_the_chief():
            self.assign(self.read_value())

    def _forget_copies(self) -> None:
        self._resident.forget()
        if self._was_assigned is not None:
            self._was_assigned.forget()

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """As TensorFlow's checkpoints save any variable: the value of all."""

        def read() -> tf.Tensor:
            # Checkpoints are written by a function that is traced each time.
            with tf.init_scope():
                return tf.constant(self.numpy())

        value = tensorflow_saving.deferred_read(read, self._dtype, self.device)
        return {tensorflow_saving.VARIABLE_VALUE_KEY: value}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        """As TensorFlow's checkpoints restore any variable."""
        # What is restored is the value of all.
        self._forget_copies()
        return super()._restore_from_tensors(restored_tensors)

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Assigns this lane's copy; on the chief, the value of all."""
        if on_the_chief():
            # Of the value now, which may be computed from the copies.
            value = tf.convert_to_tensor(value, self._dtype)
            if not self._are_neutral:
                self._forget_copies()
        else:
            self._require_rule()
            self._note_assignment()
        return super().assign(value, use_locking, name, read_value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Adds to this lane's copy; on the chief, to the value of all."""
        if not on_the_chief():
            self._note_assignment()
        elif self._rule is not MergeRule.SUM:
            value = self.read_value() + tf.convert_to_tensor(delta, self._dtype)
            return self.assign(value, use_locking, name, read_value)
        return super().assign_add(delta, use_locking, name, read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtracts likewise."""
        if not on_the_chief():
            self._note_assignment()
        elif self._rule is not MergeRule.SUM:
            value = self.read_value() - tf.convert_to_tensor(delta, self._dtype)
            return self.assign(value, use_locking, name, read_value)
        return super().assign_sub(delta, use_locking, name, read_value)

    def _require_rule(self) -> None:
        """Refuses what an eager closure assigns without a known rule."""
        if self._is_settled or not tf.executing_eagerly():
            return
        raise errors.UnsupportedError(
            f"A worker assigns its copy of the metric state {self.path!r} "
            "outside of a tf.function, where nothing shows how the copies of "
            "all workers are put together. Expected a tf.function, an "
            "addition (assign_add), or an aggregation. Received: "
            f"assign() of {self.path!r}. Schedule a tf.function that updates "
            "the metric."
        )

    def _note_assignment(self) -> None:
        """Has the lane that runs this say that its copy counts."""
        if self._was_assigned is not None:
            self._was_assigned.set()

    def forget_copies(self) -> None:
        """Drops what lanes have added; each begins anew when it next adds."""
        self._forget_copies()

    # What brings the copies of many variables at once; of those alone whose
    # rule reduces.

    def copies_by_lane(self) -> dict[int, RemoteVariable]:
        """The copies that lanes have; none if all are known to be neutral."""
        return {} if self._are_neutral else self._resident.existing_by_key()

    def forget_copy(self, lane_index: int) -> None:
        """Drops what one lane has added."""
        self._resident.forget_key(lane_index)

    def take_over(self, value: Any) -> None:
        """On the chief: takes in the value of copies, which are to be cleared.

        Args:
            value: As an array or tensor, of the variable's shape and dtype.
        """
        with compat.clear_device(), tf.device(self.device):
            own = compat.read_resource(self.own_handle, self._dtype)
            total = merging.combined(
                self._rule, own, tf.constant(value, self._dtype)
            )
            tf.raw_ops.AssignVariableOp(resource=self.own_handle, value=total)

    def copies_are_neutral(self) -> None:
        """Says that all copies are neutral, until a lane asks for its own."""
        self._are_neutral = True

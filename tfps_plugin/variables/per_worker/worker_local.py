"""Variables of which every lane has its own copy: metric states.

If all workers read and assigned a metric state on a parameter server at once,
it would lose additions: Keras writes `state.assign(state + x)`. A copy for
every lane is exact, and costs no message at all. The chief merges the copies
when it reads the state.

The variable's `MergeRule` defines how. The rule follows from the variable's
`aggregation`, if the program has set one. Otherwise it is found in the
operations that assign the state, when a step is traced (`states.local_rules`).
"""

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_saving
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.cluster.chief import connection
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.chief.chief_reads import on_the_chief
from tfps_plugin.variables.kinds.remote_variable import RemoteVariable
from tfps_plugin.variables.per_worker.worker_local_handle import AssignedFlag
from tfps_plugin.variables.per_worker.worker_local_handle import (
    WorkerLocalHandle,
)
from tfps_plugin.variables.per_worker.worker_resident import Residents
from tfps_plugin.variables.states import aggregations
from tfps_plugin.variables.states import merging
from tfps_plugin.variables.states.merge_rule import MergeRule
from tfps_plugin.variables.step_trace import StepTrace

_logger = logging.getLogger("tfps_plugin.variables")


class WorkerLocalVariable(WorkerLocalHandle):
    """A metric state: every lane assigns its own copy, exactly.

    The value on the chief depends on the rule; see `MergeRule`. Copies of sums,
    maxima and minima begin at a neutral element, and are merged with the
    chief's own value. Other copies begin at the chief's value, and only those
    count that were assigned since the chief last assigned all; if none was, the
    chief's own value counts.

    An assignment of the chief replaces all copies. The chief keeps what the
    copies of a worker have that leaves. The copies of a lost worker
    are lost: the sum does not include what the worker had counted since the
    chief last fetched or dropped the copies.

    Threading: a lane runs one closure at a time, and only this lane uses its
    copy. The chief's reads are exact while no closure is running.
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
            aggregation: How the chief merges the copies.
            rule_is_given: Whether the program has asked for a sum. If not,
                the sum is Keras's default for metric states, and the rule is
                found in the operations that assign the state.

        Raises:
            VariableCreationError: If the arguments do not define a rule, or
                values of that dtype have no mean.
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
        # The variable that holds the state instead of the copies, if any.
        self._instead: RemoteVariable | None = None
        self._are_neutral = False
        # Copies that count, of lanes whose worker has left.
        self._of_the_left: list[tf.Tensor] = []
        self.assign(initial_value)

    @property
    def rule(self) -> MergeRule:
        """The rule by which the chief merges the copies."""
        return self._rule

    @property
    def rule_is_given(self) -> bool:
        """True if the program has set the rule."""
        return self._rule_is_given

    @property
    def is_settled(self) -> bool:
        """True if the program or a traced function has set the rule."""
        return self._is_settled

    def settle(self, rule: MergeRule) -> None:
        """Sets the rule to merge copies by, before a function uses them.

        Args:
            rule: The rule that the operations of a step require; the same one
                if it is settled.
        """
        if self._is_settled:
            return
        self._is_settled = True
        if rule is not self._rule:
            value = self.numpy()
            self._rule = rule
            self._was_assigned = (
                None if rule.reduces else AssignedFlag(self.path)
            )
            self.forget_copies()
            self.assign(value)

    @property
    def is_replaced(self) -> bool:
        """True if functions that use it have to be traced again."""
        return self._instead is not None

    def replace_by(self, variable: RemoteVariable) -> None:
        """Makes all lanes and the chief use another variable instead.

        Functions that were traced before, and run on the chief, use it, too.

        Args:
            variable: A variable on a ps with the merged value.
        """
        self.forget_copies()
        self._instead = variable
        # The new variable keeps this one alive, which functions look up.
        variable.stands_for = self

    def _handle_now(self) -> tf.Tensor:
        if self._instead is not None:
            return self._instead._handle_now()
        if not on_the_chief():
            self._are_neutral = False
        return super()._handle_now()

    def _weakly(
        self, look_up: Callable[[Any], tf.Tensor]
    ) -> Callable[[], tf.Tensor]:
        """Returns a lookup that merges copies on the chief; see `_gather`."""

        def look_up_gathered(variable: Any) -> tf.Tensor:
            if on_the_chief():
                variable._gather()
            return look_up(variable)

        return super()._weakly(look_up_gathered)

    def _gather(self) -> None:
        """Merges the lanes' copies into the chief's own value.

        A function on the chief that changes the state, for example resets it,
        then changes all of it. No closure may be running.
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
        """Returns the value of a copy that changes nothing."""
        return merging.neutral(self._rule, self._shape, self._dtype)

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        if not on_the_chief():
            return super()._read_variable_op(no_copy)
        with self._taking_over():
            value = super()._read_variable_op(no_copy)
            return self._put_together(value, self._read_copies())

    def _taking_over(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the lock under which copies become the chief's value."""
        return connection.present().part(Residents).taking_over

    def _taker(self) -> Callable[[int, RemoteVariable], None]:
        reference = weakref.ref(self)

        def take_over(lane_index: int, copy: RemoteVariable) -> None:
            variable = reference()
            if variable is not None:
                variable._take_over_copy(lane_index, copy)

        return take_over

    def _take_over_copy(self, key: int, copy: RemoteVariable) -> None:
        """Keeps what a lane has counted, whose worker is about to leave."""
        if self._instead is not None or self._rule is MergeRule.CONSTANT:
            return
        if not self._counts(key):
            return
        try:
            value = copy.read_value()
        except (errors.ParameterServerLostError, tf.errors.OpError) as error:
            _logger.warning(
                "A worker that was to leave has died before its share of %s "
                "was read; what it counted since the last reset is missing. "
                "Received: %s",
                self.name,
                str(error).partition("\n")[0],
            )
            return
        with tf.init_scope(), compat.clear_device(), tf.device(self.device):
            value = tf.identity(value)
        if self._rule.reduces:
            self.take_over(value)
        else:
            self._of_the_left.append(value)

    def _read_copies(self) -> list[tf.Tensor]:
        """Returns the copies that count, in the order of lanes."""
        if self._rule is MergeRule.CONSTANT:
            return []
        values = list(self._of_the_left)
        for lane_index, copy in self.copies_by_lane().items():
            try:
                if self._counts(lane_index):
                    values.append(copy.read_value())
            except errors.ParameterServerLostError:
                # The copy is on the worker that adds to it, not on a ps.
                _logger.warning(
                    "A worker died before its share of %s was read; what it "
                    "counted since the last reset is missing.",
                    self.name,
                )
        return values

    def _counts(self, lane_index: int) -> bool:
        """Returns whether the merged value depends on a lane's copy."""
        flag = self._was_assigned
        return flag is None or flag.is_set(lane_index)

    def _put_together(
        self, own: tf.Tensor, copies: list[tf.Tensor]
    ) -> tf.Tensor:
        """Merges copies into the value on the chief."""
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
        """Replaces the copies by their merged value, on the chief."""
        if on_the_chief():
            self.assign(self.read_value())

    def forget_copies(self) -> None:
        """Drops what lanes have added; each starts over when it next adds."""
        self._resident.forget()
        self._of_the_left.clear()
        if self._was_assigned is not None:
            self._was_assigned.forget()

    def _serialize_to_tensors(self) -> dict[str, Any]:
        """Serializes the merged value as TensorFlow does any variable."""

        def read() -> tf.Tensor:
            # Checkpoints are written by a function that is traced each time.
            with tf.init_scope():
                return tf.constant(self.numpy())

        value = tensorflow_saving.deferred_read(read, self._dtype, self.device)
        return {tensorflow_saving.VARIABLE_VALUE_KEY: value}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        """Restores the merged value as TensorFlow does any variable."""
        self.forget_copies()
        return super()._restore_from_tensors(restored_tensors)

    def _assign_by(
        self, method: str, value: Any, name: str | None, read_value: bool
    ) -> Any:
        """Changes this lane's copy; on the chief, the merged value."""
        if not on_the_chief():
            if method == "assign":
                self._require_rule()
            value = self._of_present_replica(method, value)
            self._note_assignment()
        elif method == "assign":
            # Convert it now: the value may be computed from the copies.
            value = tf.convert_to_tensor(value, self._dtype)
            with self._taking_over():
                if not self._are_neutral:
                    self.forget_copies()
                return super()._assign_by(method, value, name, read_value)
        elif self._rule is not MergeRule.SUM:
            delta = tf.convert_to_tensor(value, self._dtype)
            merged = self.read_value()
            merged = (
                merged + delta if method == "assign_add" else merged - delta
            )
            return self.assign(merged, None, name, read_value)
        return super()._assign_by(method, value, name, read_value)

    def _of_present_replica(self, method: str, value: Any) -> Any:
        """Returns a value that changes nothing if its replica has no example.

        Replicas of a worker assign one after the other.
        """
        replica = StepTrace.current().replica
        if replica is None:
            return value
        value = tf.convert_to_tensor(value, self._dtype)
        nothing = (
            self.read_value() if method == "assign" else tf.zeros_like(value)
        )
        return tf.where(replica.is_present, value, nothing)

    def _require_rule(self) -> None:
        """Refuses assignments of an eager closure if the rule is unknown."""
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
        """Notes that the copy of the lane that runs this counts."""
        if self._was_assigned is not None:
            self._was_assigned.set()

    # Methods that fetch the copies of many variables at once, for variables
    # whose rule reduces.

    def copies_by_lane(self) -> dict[int, RemoteVariable]:
        """Returns the lanes' copies; none if all are known to be neutral."""
        return {} if self._are_neutral else self._resident.existing_by_key()

    def forget_copy(self, lane_index: int) -> None:
        """Drops what one lane has added."""
        self._resident.forget_key(lane_index)

    def take_over(self, value: Any) -> None:
        """Merges the value of copies that will be cleared, on the chief.

        Args:
            value: An array or tensor of the variable's shape and dtype.
        """
        with compat.clear_device(), tf.device(self.device):
            own = compat.read_resource(self.own_handle, self._dtype)
            total = merging.combined(
                self._rule, own, tf.constant(value, self._dtype)
            )
            tf.raw_ops.AssignVariableOp(resource=self.own_handle, value=total)

    def copies_are_neutral(self) -> None:
        """Notes that all copies are neutral, until a lane uses its own."""
        self._are_neutral = True

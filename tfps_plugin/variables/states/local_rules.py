"""The merge rule of a metric state, from the operations that assign it.

Every lane has its own copy of such a state. Copies can be merged if each batch
adds a value to the state, or takes their maximum or minimum, and the value does
not depend on any state that has copies.
"""

from typing import Any

import tensorflow as tf

from tfps_plugin.variables.states.flow import Flow
from tfps_plugin.variables.states.flow import Frame
from tfps_plugin.variables.states.flow import Write
from tfps_plugin.variables.states.merge_rule import MergeRule

# The form of a value with respect to one state: the state's own value; a free
# value, which depends on no copy of a state; or a rule's combination of both.
_OWN = "own"
_FREE = "free"
_Form = MergeRule | str | None

_SUM, _MAX, _MIN = MergeRule.SUM, MergeRule.MAX, MergeRule.MIN

_SAME_VALUE = frozenset({"Identity", "StopGradient", "EnsureShape"})
# Operations on the state and a free value, on either side.
_EITHER_SIDE = {
    "Add": _SUM,
    "AddV2": _SUM,
    # keras.ops.add uses it for an addition to every row.
    "BiasAdd": _SUM,
    "AddN": _SUM,
    "Maximum": _MAX,
    "LogicalOr": _MAX,
    "Minimum": _MIN,
    "LogicalAnd": _MIN,
}
# Operations on the state, as the first input, and free values.
_STATE_FIRST = {
    "Sub": _SUM,
    "TensorScatterAdd": _SUM,
    "TensorScatterSub": _SUM,
    "TensorScatterMax": _MAX,
    "TensorScatterMin": _MIN,
}
# Operations on the state and free values in one tensor.
_REDUCTIONS = {
    "Sum": _SUM,
    "Max": _MAX,
    "Any": _MAX,
    "Min": _MIN,
    "All": _MIN,
}
_REARRANGES = frozenset({"Pack", "ConcatV2", "ExpandDims", "Reshape"})
# Operations that change the variable that is their first input.
_CHANGES = {
    "AssignAddVariableOp": _SUM,
    "AssignSubVariableOp": _SUM,
    "ResourceScatterAdd": _SUM,
    "ResourceScatterSub": _SUM,
    "ResourceScatterNdAdd": _SUM,
    "ResourceScatterNdSub": _SUM,
    "ResourceScatterMax": _MAX,
    "ResourceScatterNdMax": _MAX,
    "ResourceScatterMin": _MIN,
    "ResourceScatterNdMin": _MIN,
}
_ASSIGNS = "AssignVariableOp"
_SELECTS = frozenset({"Select", "SelectV2"})


def find(flow: Flow, states: list[Any]) -> dict[int, MergeRule | None]:
    """Finds the rules of states of which every lane has a copy.

    Args:
        flow: The data flow of a traced step.
        states: The variables of the step that are such states.

    Returns:
        The rules by the states' ids; None if there is no rule. States that a
        step does not assign, and uses for nothing but its results, are left
        out.
    """
    assigned = [state for state in states if flow.writes_of(state)]
    copies = 0
    for state in assigned:
        copies |= flow.reads(state)
    rules: dict[int, MergeRule | None] = {}
    for state in states:
        if _flows_into_others(flow, state):
            rules[id(state)] = (
                None if flow.writes_of(state) else MergeRule.CONSTANT
            )
        elif flow.writes_of(state):
            rules[id(state)] = _Assignments(flow, state, copies).rule()
    return rules


def _flows_into_others(flow: Flow, state: Any) -> bool:
    """Returns whether any other variable's new value depends on a state."""
    reads = flow.reads(state)
    return bool(reads) and any(
        write.mask & reads
        for write in flow.writes
        if write.variable is not state
    )


class _Assignments:
    """All assignments of one state in a step."""

    def __init__(self, flow: Flow, state: Any, copies: int) -> None:
        """Stores the arguments.

        Args:
            flow: The data flow of the step.
            state: The state.
            copies: The reads of all states that have copies.
        """
        self._flow = flow
        self._state = state
        self._copies = copies

    def rule(self) -> MergeRule | None:
        """Returns the rule that all of them follow, if there is one."""
        found = {self._of_write(w) for w in self._flow.writes_of(self._state)}
        found.discard(_OWN)
        if None in found:
            return None
        if MergeRule.LAST in found:
            # Everything else that the batch does to it starts or ends there.
            return MergeRule.LAST
        if len(found) != 1:
            return None
        (rule,) = found
        return rule if isinstance(rule, MergeRule) else None

    def _of_write(self, write: Write) -> _Form:
        operation, frame = write.operation, write.frame
        if frame.control & self._copies:
            return None
        if operation.type != _ASSIGNS:
            rule = _CHANGES.get(operation.type)
            return None if write.mask & self._copies else rule
        form = self._form(frame, operation.inputs[1])
        if form != _FREE:
            return form
        # A batch that does not assign the state leaves an earlier value there.
        is_certain = not (frame.is_conditional or frame.is_loop)
        return MergeRule.LAST if is_certain else None

    def _form(self, frame: Frame, tensor: tf.Tensor) -> _Form:
        if not frame.mask(tensor) & self._copies:
            return _FREE
        operation = tensor.op
        kind, inputs = operation.type, list(operation.inputs)
        if id(tensor) in frame.given:
            return self._form(*frame.given[id(tensor)])
        if kind == "ReadVariableOp":
            owners = frame.variables(inputs[0])
            return _OWN if owners == (self._state,) else None
        if kind in _SAME_VALUE or (
            kind == "Reshape" and tensor.shape == inputs[0].shape
        ):
            return self._form(frame, inputs[0])
        if kind == "Cast":
            return self._of_cast(frame, inputs[0], tensor)
        if kind in _EITHER_SIDE:
            forms = [self._form(frame, one) for one in inputs]
            return _combined(_EITHER_SIDE[kind], forms)
        if kind in _STATE_FIRST:
            forms = [self._form(frame, one) for one in inputs]
            if set(forms[1:]) != {_FREE}:
                return None
            return _combined(_STATE_FIRST[kind], forms)
        if kind in _REDUCTIONS:
            return self._of_reduction(frame, operation)
        if kind in _SELECTS:
            if self._form(frame, inputs[0]) != _FREE:
                return None
            return _one_of([self._form(frame, one) for one in inputs[1:]])
        return self._of_call(frame, tensor)

    def _of_cast(
        self, frame: Frame, given: tf.Tensor, tensor: tf.Tensor
    ) -> _Form:
        """Returns a cast's form; None if it may lose what batches add."""
        keeps = given.dtype == tensor.dtype or (
            given.dtype.is_floating and tensor.dtype.is_floating
        )
        widens = (
            given.dtype.is_integer
            and tensor.dtype.is_integer
            and tensor.dtype.size >= given.dtype.size
        )
        return self._form(frame, given) if keeps or widens else None

    def _of_reduction(self, frame: Frame, operation: tf.Operation) -> _Form:
        """Returns the form of a reduction, such as `max(stack([v, x]))`."""
        rule = _REDUCTIONS[operation.type]
        values, axes = operation.inputs
        (result,) = operation.outputs
        if result.shape != self._state.shape:
            return None
        if self._state.shape.rank == 0:
            forms = self._of_parts(frame, values)
        else:
            packed = values.op
            axis = tf.get_static_value(axes)
            if (
                packed.type != "Pack"
                or axis is None
                or [int(a) % values.shape.rank for a in axis.reshape(-1)]
                != [packed.get_attr("axis") % values.shape.rank]
            ):
                return None
            forms = [self._form(frame, one) for one in packed.inputs]
        return _combined(rule, forms)

    def _of_parts(self, frame: Frame, tensor: tf.Tensor) -> list[_Form]:
        """Returns the forms of the parts of a tensor, in any shape."""
        operation = tensor.op
        if (
            operation.type not in _REARRANGES
            or not frame.mask(tensor) & self._copies
        ):
            return [self._form(frame, tensor)]
        inputs = list(operation.inputs)
        if operation.type == "ConcatV2":
            inputs = inputs[:-1]
        elif operation.type != "Pack":
            inputs = inputs[:1]
        return [form for one in inputs for form in self._of_parts(frame, one)]

    def _of_call(self, frame: Frame, tensor: tf.Tensor) -> _Form:
        """Returns the form of a result of a function or conditional."""
        operation = tensor.op
        inner = frame.inner.get(operation.name)
        if not inner or any(one.is_loop for one in inner):
            return None
        if any(one.control & self._copies for one in inner):
            return None
        place = tensor.value_index
        return _one_of(
            [self._form(one, one.graph.outputs[place]) for one in inner]
        )


def _combined(rule: MergeRule, forms: list[_Form]) -> _Form:
    """Returns the form that an operation of a rule gives its inputs' forms."""
    states = [form for form in forms if form != _FREE]
    if len(states) == 1 and states[0] in (_OWN, rule):
        return rule
    return None


def _one_of(forms: list[_Form]) -> _Form:
    """Returns the form of a value that is one of several alternatives."""
    found = set(forms)
    if len(found) > 1:
        found.discard(_OWN)
    return found.pop() if len(found) == 1 and _FREE not in found else None

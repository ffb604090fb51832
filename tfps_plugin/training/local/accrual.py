"""Gradients of local steps: summed up, and applied to local weights.

Between two reads of the weights, a worker moves its own copy by plain gradient
descent, as in Dean et al., "Large Scale Distributed Deep Networks", 2012.
"""

import contextlib
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.training.local.plan import Plan
from tfps_plugin.training.local.plan import PlannedUpdate
from tfps_plugin.training.optimizers import sparse_gradients
from tfps_plugin.variables.dynamic import held_gradients
from tfps_plugin.variables.lookup import distinct_rows
from tfps_plugin.variables.step_trace import StepTrace


class RowSums(NamedTuple):
    """Gradients of rows, with each id as often as steps have used it.

    Attributes:
        ids: Row numbers, shape `(N,)`.
        rows: A gradient for each, shape `(N, D)`.
        holders: Where rows may go to other ids, one tensor: the ids that had
            them, int64, shape `(N,)`. Otherwise none.
    """

    ids: tf.Tensor
    rows: tf.Tensor
    holders: tuple[tf.Tensor, ...]


class RoundState(NamedTuple):
    """Tensors that one local step hands to the next.

    Attributes:
        weights: The local values of `Plan.weights`.
        sums: For each update, the sum of the gradients of each variable: a
            tensor or `RowSums`.
    """

    weights: list[tf.Tensor]
    sums: list[list[tf.Tensor | RowSums]]


def state_specs(plan: Plan) -> RoundState:
    """Returns the types of the tensors of a state, as `tf.TensorSpec`.

    Args:
        plan: The plan of the round.
    """

    def of_sum(variable: Any, id_dtype: tf.DType | None, is_held: bool) -> Any:
        value = compat.value_of(variable)
        if id_dtype is None:
            return tf.TensorSpec(value.shape, value.dtype)
        return RowSums(
            tf.TensorSpec([None], id_dtype),
            tf.TensorSpec([None, *value.shape[1:]], value.dtype),
            (tf.TensorSpec([None], tf.int64),) if is_held else (),
        )

    return RoundState(
        [tf.TensorSpec(value.shape, value.dtype) for value in plan.weights],
        [
            [
                of_sum(*each)
                for each in zip(
                    update.variables,
                    update.id_dtypes,
                    update.are_held,
                    strict=True,
                )
            ]
            for update in plan.updates
        ],
    )


def gradients_of(update: PlannedUpdate, sums: Sequence[Any]) -> list[Any]:
    """Returns sums in the form in which an optimizer applies them.

    Args:
        update: The planned update.
        sums: One of `RoundState.sums`.
    """
    return [
        _slices(compat.value_of(variable), total)
        if isinstance(total, RowSums)
        else total
        for variable, total in zip(update.variables, sums, strict=True)
    ]


def _slices(table: Any, sums: RowSums) -> tf.IndexedSlices:
    if sums.holders:
        # TensorFlow's optimizer of graphs takes their sizes before the loop for
        # those after it, but not through these.
        ids, holders, rows = (
            tf.raw_ops.PlaceholderWithDefault(input=each, shape=each.shape)
            for each in (sums.ids, *sums.holders, sums.rows)
        )
        return held_gradients.summed(table, ids, holders, rows)
    return tf.IndexedSlices(
        sums.rows, sums.ids, distinct_rows.dense_shape(table.shape)
    )


class LocalWeight:
    """The local value of a variable, in its place while a step is traced.

    Gradient tapes see it as the variable itself.
    """

    def __init__(self, variable: Any, value: tf.Tensor, graph: Any) -> None:
        """Takes the value at the start of a step.

        Args:
            variable: A variable on parameter servers.
            value: Its local value.
            graph: The graph of the step.
        """
        self._variable = variable
        self._graph = graph
        self.value = value

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of the variable."""
        # Not that of the variable, which asks its view.
        return self.value.shape

    def read(self) -> tf.Tensor:
        """Returns the local value."""
        with contextlib.ExitStack() as stack:
            if tf.compat.v1.get_default_graph() is not self._graph:
                # The inside of a loop or branch. Tapes connect a value with
                # its variable only where the value is made.
                stack.enter_context(self._graph.as_default())
            with tensorflow_variables.stop_recording():
                value = tf.identity(self.value)
            tensorflow_variables.record_gradient(
                value, self._variable.tape_input, lambda upstream: upstream
            )
        return value

    def assign(self, method: str, value: Any) -> None:
        """Refuses: steps change weights by their gradients only."""
        del value
        raise errors.UnsupportedError(
            "Local steps change the weights that they train by gradients only. "
            "Expected optimizer.apply() alone. Received: "
            f"{method} of {self._variable.path!r} in a step. Leave it out, or "
            "train with tfps.Async()."
        )


class Accrual:
    """Takes the gradients of one local step while the step is traced.

    Attributes:
        views: The local weights, by the `_unique_id` of their variables.

    Threading: only the thread that traces uses it.
    """

    def __init__(
        self, plan: Plan, state: RoundState, rates: Sequence[tf.Tensor]
    ) -> None:
        """Begins a step, in the function of the step.

        Args:
            plan: The plan of the round.
            state: The results of the steps before.
            rates: The learning rate of each update.
        """
        self._plan = plan
        self._sums = state.sums
        self._rates = rates
        self._added: list[list[Any]] = []
        self._graph = tf.compat.v1.get_default_graph()
        self._weights = [
            LocalWeight(variable, value, self._graph)
            for variable, value in zip(plan.weights, state.weights, strict=True)
        ]
        self.views = {
            variable._unique_id: weight
            for variable, weight in zip(
                plan.weights, self._weights, strict=True
            )
        }

    def push(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Takes the gradients of one `optimizer.apply`."""
        number = len(self._added)
        graph = tf.compat.v1.get_default_graph()
        if graph is not self._graph or graph is not (
            tensorflow_graphs.outermost_function(graph)
        ):
            raise errors.UnsupportedError(
                "A round of local steps applies the gradients of all its steps "
                "together. Expected optimizer.apply() outside of conditions, "
                f"loops and inner functions. Received: {optimizer.name!r}, "
                "applied inside of one. Move it out, or train with "
                "tfps.Async()."
            )
        if number >= len(self._plan.updates) or not self._plan.updates[
            number
        ].is_of(optimizer, variables):
            raise errors.UnsupportedError(
                "The local steps of a round apply gradients to the same "
                "variables. Expected a step that does so each time that it is "
                f"traced. Received: other variables in update {number + 1}, by "
                f"{optimizer.name!r}. Let train_step() not depend on state of "
                "Python, or train with tfps.Async()."
            )
        self._added.append(
            [
                _added(total, gradient, variable)
                for total, gradient, variable in zip(
                    self._sums[number], gradients, variables, strict=True
                )
            ]
        )
        for variable, gradient in zip(
            variables, _clipped(optimizer, gradients, variables), strict=True
        ):
            view = self.views.get(compat.value_of(variable)._unique_id)
            if view is not None:
                view.value = _moved(
                    variable, view.value, gradient, self._rates[number]
                )

    def finish(self) -> RoundState:
        """Returns the state after the step.

        Raises:
            UnsupportedError: If the step has made fewer updates than planned.
        """
        if len(self._added) != len(self._plan.updates):
            raise errors.UnsupportedError(
                "The local steps of a round apply gradients to the same "
                "variables. Expected a step that does so each time that it is "
                f"traced. Received: {len(self._added)} updates instead of "
                f"{len(self._plan.updates)}. Let train_step() not depend on "
                "state of Python, or train with tfps.Async()."
            )
        return RoundState(
            [weight.value for weight in self._weights], self._added
        )


def run(accrual: Accrual, step: Any, data: Any) -> tuple[Any, RoundState]:
    """Traces one local step, in the function of the step.

    Args:
        accrual: Takes its gradients.
        step: A function of a batch that applies gradients.
        data: The batch.

    Returns:
        What the step returns, and the state after it.
    """
    trace = StepTrace.current()
    trace.accrual = accrual
    trace.is_in_round = True
    try:
        with trace.viewing(accrual.views):
            outputs = step(data)
    finally:
        trace.accrual = None
    return outputs, accrual.finish()


def _added(total: Any, gradient: Any, variable: Any) -> Any:
    """Adds the gradient of a step to a sum."""
    is_rows = isinstance(gradient, tf.IndexedSlices)
    if is_rows != isinstance(total, RowSums):
        raise errors.UnsupportedError(
            "The gradient of a variable is either dense or consists of rows, "
            "in all local steps. Expected the same each time that the step is "
            f"traced. Received: variable={compat.path_of(variable)!r}, once of "
            "either form. Train with tfps.Async()."
        )
    if not is_rows:
        return total + tf.ensure_shape(
            tf.cast(gradient, total.dtype), total.shape
        )
    rows = tf.cast(gradient.values, total.rows.dtype)
    holders = tuple(
        tf.concat(
            [
                before,
                held_gradients.ids_of(compat.value_of(variable), gradient),
            ],
            0,
        )
        for before in total.holders
    )
    return RowSums(
        tf.concat([total.ids, tf.cast(gradient.indices, total.ids.dtype)], 0),
        tf.concat([total.rows, rows], 0),
        holders,
    )


def _clipped(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    """Returns the gradients by which local weights move."""
    scale = optimizer.loss_scale_factor
    found = list(gradients)
    if scale is not None:
        found = [
            sparse_gradients.on_values(g, lambda v: v / scale) for g in found
        ]
    clips_by_itself = compat.clips_by_itself(optimizer)
    if not clips_by_itself and not any(
        (optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue)
    ):
        return found
    found = [
        distinct_rows.distinct(g) if isinstance(g, tf.IndexedSlices) else g
        for g in found
    ]
    if clips_by_itself:
        return compat.clip_by_itself(optimizer, found)
    return sparse_gradients.clip(optimizer, found, variables)


def _moved(
    variable: Any, value: tf.Tensor, gradient: Any, rate: tf.Tensor
) -> tf.Tensor:
    """Returns a local weight after a step of plain gradient descent."""
    gradient = tf.cast(gradient, value.dtype)
    moved = value - tf.cast(rate, value.dtype) * gradient
    constraint = getattr(variable, "constraint", None)
    if constraint is not None:
        moved = tf.cast(constraint(moved), value.dtype)
    return tf.ensure_shape(moved, value.shape)

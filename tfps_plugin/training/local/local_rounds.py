"""Rounds of local steps as functions of a worker.

A round reads weights once, makes some steps on its own copy of them, and
applies the sum of their gradients. It is shorter if the input ends, or if the
call has fewer steps left.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin.training.local import accrual
from tfps_plugin.training.local import plan as plans
from tfps_plugin.training.local.accrual import Accrual
from tfps_plugin.training.local.accrual import RoundState
from tfps_plugin.training.local.plan import Plan
from tfps_plugin.training.local.plan import PlannedUpdate
from tfps_plugin.training.optimizers import step_count
from tfps_plugin.variables.step_trace import StepTrace


class RoundOutput(NamedTuple):
    """Result of a round.

    Attributes:
        num_steps: Number of its steps, at least one.
        outputs: Result of the last step.
        following: What stands for the batches after the round.
    """

    num_steps: tf.Tensor
    outputs: Any
    following: Any


class Source(NamedTuple):
    """Batches of a round.

    Attributes:
        specs: Types of the arguments of a function of a round, before the
            number of steps.
        first: Returns what stands for the first batch; takes the arguments.
        goes_on: Returns whether there is another batch. Takes the arguments,
            the number of steps done and what stands for the batch.
        batch: Returns the batch; takes the same.
        following: Returns what stands for the next batch. Takes the arguments,
            the number of steps done and the number that the call may make.
    """

    specs: tuple[Any, ...]
    first: Callable[..., Any]
    goes_on: Callable[..., tf.Tensor]
    batch: Callable[..., Any]
    following: Callable[..., Any]


class LocalRounds:
    """Functions of rounds, for one step of a model.

    Threading: only the thread that traces uses it.
    """

    def __init__(
        self,
        one_step: Any,
        step: Callable[[Any], Any],
        local_steps: int,
        variables: Callable[[], list[Any]],
    ) -> None:
        """Traces nothing yet.

        Args:
            one_step: A `tf.function` of one batch that applies gradients. It
                tells what a step does, and never runs.
            step: What it traces.
            local_steps: Number of steps of a round.
            variables: Returns TensorFlow's variables of the model.
        """
        self._one_step = one_step
        self._step = step
        self._local_steps = local_steps
        self._variables = variables

    def traced(
        self, element_spec: Any, source: Source
    ) -> Callable[..., RoundOutput]:
        """Returns the function of a round.

        It takes the arguments of the source, and the number of steps that the
        call has left, which is at least one. There has to be a batch.

        Call it outside of other functions: parts of a round are functions of
        their own.

        Args:
            element_spec: Type of a batch, as the step sees it.
            source: The batches.
        """
        one_step = self._one_step.get_concrete_function(element_spec)
        plan = plans.of_step(one_step.graph, self._variables())
        rate_specs = [tf.TensorSpec([], tf.float32) for _ in plan.updates]

        @tf.autograph.experimental.do_not_convert
        def local_step(
            data: Any, state: RoundState, rates: list[tf.Tensor]
        ) -> Any:
            return accrual.run(Accrual(plan, state, rates), self._step, data)

        step = tf.function(local_step)
        plans.require_local_reads(
            plan,
            step.get_concrete_function(
                element_spec, accrual.state_specs(plan), rate_specs
            ).graph,
        )

        @tf.autograph.experimental.do_not_convert
        def local_round(*arguments: Any) -> RoundOutput:
            trace = StepTrace.current()
            trace.chief_waits = True
            trace.is_in_round = True
            *given, left = arguments
            return self._round(
                plan, step, one_step.structured_outputs, source, given, left
            )

        function = tf.function(local_round)
        function.get_concrete_function(
            *source.specs, tf.TensorSpec([], tf.int32)
        )
        return function

    def _round(
        self,
        plan: Plan,
        step: Any,
        outputs: Any,
        source: Source,
        given: list[Any],
        left: tf.Tensor,
    ) -> RoundOutput:
        most = tf.minimum(left, self._local_steps)
        rates = [
            tf.cast(
                tf.convert_to_tensor(update.optimizer.learning_rate), tf.float32
            )
            for update in plan.updates
        ]
        specs = accrual.state_specs(plan)
        # A step reads its weights under a tape, which lets them travel in
        # fewer bits.
        with tf.GradientTape():
            weights = [tf.convert_to_tensor(value) for value in plan.weights]
        begin = RoundState(weights, tf.nest.map_structure(_nothing, specs.sums))

        def body(done: tf.Tensor, _: Any, state: RoundState, now: Any) -> Any:
            outputs, state = step(source.batch(*given, done, now), state, rates)
            done += 1
            return done, outputs, state, source.following(*given, done, left)

        first = source.first(*given)
        done, outputs, state, following = tf.while_loop(
            lambda done, _outputs, _state, now: (
                (done < most) & source.goes_on(*given, done, now)
            ),
            body,
            loop_vars=(
                tf.constant(0),
                tf.nest.map_structure(_nothing, outputs),
                begin,
                first,
            ),
            shape_invariants=(
                tf.TensorShape([]),
                tf.nest.map_structure(lambda output: output.shape, outputs),
                tf.nest.map_structure(lambda spec: spec.shape, specs),
                tf.nest.map_structure(_shape, first),
            ),
            # Steps follow one another: each uses the weights of the last.
            parallel_iterations=1,
        )
        StepTrace.current().counts_after = [done]
        for update, sums in zip(plan.updates, state.sums, strict=True):
            _apply(update, accrual.gradients_of(update, sums))
        return RoundOutput(done, outputs, following)


def _apply(update: PlannedUpdate, gradients: list[Any]) -> None:
    """Applies the sums of a round."""
    if gradients:
        update.optimizer.apply(gradients, update.variables)
    else:
        step_count.count(update.optimizer, [], StepTrace.current())


def _nothing(spec: Any) -> tf.Tensor:
    shape = [0 if size is None else size for size in spec.shape.as_list()]
    return tf.zeros(shape, spec.dtype)


def _shape(value: Any) -> tf.TensorShape | None:
    """Returns the shape of a tensor; None of what is none."""
    return value.shape if isinstance(value, tf.Tensor) else None

"""Wrappers of Keras's optimizers for variables on parameter servers."""

import functools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.strategy import consistency as consistencies
from tfps_plugin.strategy.consistency import Async
from tfps_plugin.strategy.consistency import BoundedStaleness
from tfps_plugin.strategy.consistency import Sync
from tfps_plugin.strategy.parameter_server_strategy import (
    ParameterServerStrategy,
)
from tfps_plugin.training.optimizers import compiled_steps
from tfps_plugin.training.optimizers import local_support
from tfps_plugin.training.optimizers import made_rows
from tfps_plugin.training.optimizers import sparse_gradients
from tfps_plugin.training.optimizers import step_staleness
from tfps_plugin.training.optimizers import whole_matrix
from tfps_plugin.training.optimizers.catch_up import caught_up_tables
from tfps_plugin.training.optimizers.compiled_steps import CompiledSteps
from tfps_plugin.training.optimizers.step import OptimizerStep
from tfps_plugin.variables.step_trace import StepTrace
from tfps_plugin.variables.step_trace import Update


def is_ours(optimizer: Any) -> bool:
    """Returns whether an optimizer was made under one of our strategies."""
    return isinstance(compat.strategy_of(optimizer), ParameterServerStrategy)


def build(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `build` that checks the variables of the optimizer."""

    @functools.wraps(original)
    def build_on_ps(self: Any, variables: Sequence[Any]) -> None:
        if not is_ours(self):
            return original(self, variables)
        step_staleness.require_supported(self)
        local_support.require_supported(self)
        if not _is_wrapper(self):
            whole_matrix.require_supported(self, list(variables))
            compat.require_no_overrides(self)
        was_built = self.built
        original(self, variables)
        if not _is_wrapper(self):
            made_rows.prepare(self, list(variables))
        if (
            compat.strategy_of(self).sparse_update == "caught_up"
            and not was_built
            and not _is_wrapper(self)
        ):
            caught_up_tables.attach(self, list(variables))
        return None

    return build_on_ps


class _WithSlotsBeside(list[Any]):
    """Variables of which the one that a loop has come to attracts new ones.

    `Adafactor.build` makes slots of other shapes than their variable's, so it
    does not say whose they are; but it makes them in a loop over variables. An
    update of a variable may use only what is on its own parameter server.
    """

    def __init__(self, variables: Sequence[Any], strategy: Any) -> None:
        """Takes the variables of an optimizer, and its strategy."""
        super().__init__(variables)
        self._extended = strategy.extended

    def __iter__(self) -> Iterator[Any]:
        for variable in super().__iter__():
            value = compat.value_of(variable)
            with self._extended.colocate_vars_with(value):
                yield variable


def build_beside(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a `build` that puts all slots beside their variables."""

    @functools.wraps(original)
    def build_on_ps_of_variables(self: Any, var_list: Sequence[Any]) -> None:
        if is_ours(self):
            var_list = _WithSlotsBeside(var_list, compat.strategy_of(self))
        return original(self, var_list)

    return build_on_ps_of_variables


def apply(original: Callable[..., None]) -> Callable[..., None]:
    """Returns an `apply` that runs where the variables live."""

    @functools.wraps(original)
    def apply_on_ps(
        self: Any,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        if not is_ours(self):
            return original(self, grads, trainable_variables)
        compat.strategy_of(self).tell_of_unused_storage()
        trace = StepTrace.current()
        if len(grads) == 0:
            if trace.only_on is not None:
                # This ps has none of the variables, but it keeps scalars of
                # the optimizer, and others may wait for its part of a norm.
                OptimizerStep(self, [], trace).run([])
            return None
        with compat.name_scope(self.name, caller=self):
            gradients, variables = compat.gradients_to_apply(
                self, grads, trainable_variables
            )
            made_rows.require_known_slots(self, variables)
            if trace.exchange is not None:
                trace.exchange.push(self, gradients, variables)
                return None
            if trace.accrual is not None:
                trace.accrual.push(self, gradients, variables)
                return None
            if trace.updates is not None:
                trace.updates.append(Update(self, gradients, variables))
            _require_own_step(self, trace)
            if gradients and compiled_steps.can_compile(self):
                if not hasattr(self, "_tfps_compiled_steps"):
                    self._tfps_compiled_steps = CompiledSteps()
                self._tfps_compiled_steps.run(self, gradients, variables)
            elif gradients:
                step = OptimizerStep(self, variables, trace)
                step.run(gradients)
            else:
                compat.step_counter_of(self).assign_add(1)
        return None

    return apply_on_ps


def apply_scaled(original: Callable[..., None]) -> Callable[..., None]:
    """Returns the `apply` of a `LossScaleOptimizer`, for synchronous steps.

    Whether to skip a step, the parameter servers decide together.
    """

    @functools.wraps(original)
    def apply_together(
        self: Any,
        grads: Sequence[Any],
        trainable_variables: Sequence[Any] | None = None,
    ) -> None:
        exchange = StepTrace.current().exchange
        if exchange is None or not is_ours(self):
            return original(self, grads, trainable_variables)
        variables = compat.require_built(self, trainable_variables)
        pairs = zip(grads, variables, strict=True)
        given = [(g, v) for g, v in pairs if g is not None]
        exchange.push(self, [g for g, _ in given], [v for _, v in given])
        return None

    return apply_together


def check_finite(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `check_finite` that checks the values of sparse gradients."""

    @functools.wraps(original)
    def check(self: Any, grads: Sequence[Any]) -> Any:
        is_finite = StepTrace.current().is_finite
        if is_finite is not None:
            # This ps has a part of the gradients only.
            return is_finite
        return original(
            self,
            [
                None if g is None else sparse_gradients.values_of(g)
                for g in grads
            ],
        )

    return check


# The rule by which workers wait for each other, and what follows for programs.
_RULES = {
    Async: "only the steps of fit() are made in rounds of local_steps. "
    "Expected training by fit().",
    Sync: "workers make each step together. Expected optimizer.apply() in a "
    "function that strategy.run() calls, in a scheduled tf.function and "
    "outside of loops, conditions and functions inside of it.",
    BoundedStaleness: "only the steps of fit() wait for other workers. "
    "Expected training by fit().",
}


def _require_own_step(optimizer: Any, trace: StepTrace) -> None:
    """Refuses an update that is not part of a step as the consistency asks.

    A function that is traced without the coordinator may be for the chief. Who
    schedules it is told.

    Raises:
        UnsupportedError: If workers have to wait for each other, or to make
            rounds of steps, and one runs the function without.
    """
    consistency = compat.strategy_of(optimizer).consistency
    is_part = trace.is_gated or trace.is_in_round or trace.only_on is not None
    if (
        is_part
        or trace.is_discarded
        or consistencies.updates_at_once(consistency)
    ):
        return
    if (
        compat.strategy_of(optimizer).extended.chief_runs.is_traced_for_workers
        or dispatch_context.current() is not None
    ):
        raise errors.UnsupportedError(
            f"Under consistency=tfps.{consistency} {_RULES[type(consistency)]} "
            f"Received: optimizer.apply() of {optimizer.name!r} elsewhere. "
            "Move it, call fit(), or train with consistency=tfps.Async()."
        )
    trace.applies_alone = True


def _is_wrapper(optimizer: Any) -> bool:
    """Returns whether it leaves updates to other optimizers."""
    return hasattr(optimizer, "inner_optimizer") or isinstance(
        optimizer, compat.MultiOptimizer
    )

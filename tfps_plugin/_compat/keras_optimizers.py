"""Private Keras API: the parts of `optimizer.apply`.

Checked against Keras 3.12 to 3.15.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras

# Names of an optimizer's variables start with its own name.
from keras.src.backend import name_scope as name_scope

# The base class of all optimizers that TensorFlow runs.
from keras.src.backend.tensorflow.optimizer import TFOptimizer as TFOptimizer

from tfps_plugin import errors

# Since Keras 3.15.
MultiOptimizer = getattr(keras.optimizers, "MultiOptimizer", ())

_decay_of_keras = TFOptimizer._apply_weight_decay
_clip_of_keras = TFOptimizer._clip_gradients
# Keras's loop over variables, which calls `update_step`.
_LOOP = "_distributed_tf_update_step"
# Methods that our own `apply` replaces.
_REPLACED = {
    name: getattr(TFOptimizer, name)
    for name in (
        "_backend_apply_gradients",
        "_backend_increment_gradient_accumulators",
        "_update_model_variables_moving_average",
        _LOOP,
    )
}
# Methods that lead to the loop, and that an optimizer may extend.
_AROUND_LOOP = {
    name: getattr(TFOptimizer, name)
    for name in ("_backend_update_step", "_all_reduce_sum_gradients")
}


def gradients_to_apply(
    optimizer: Any,
    gradients: Sequence[Any],
    variables: Sequence[Any] | None,
) -> tuple[list[Any], list[Any]]:
    """Checks and filters gradients as `BaseOptimizer.apply` does at first.

    Args:
        optimizer: A Keras optimizer; builds it if needed.
        gradients: One for every variable; None for a variable without.
        variables: The variables; None for those it was built with.

    Returns:
        The gradients to apply, and their variables.

    Raises:
        ValueError: As Keras does, for a wrong number of gradients, unknown
            variables, or no gradient at all.
    """
    if variables is None:
        if not optimizer.built:
            raise ValueError(
                "Gradients without variables can only be applied by an "
                "optimizer that is built. Received: trainable_variables=None. "
                "Pass the variables, or call optimizer.build(variables) first."
            )
        variables = optimizer._trainable_variables
        if len(gradients) != len(variables):
            raise ValueError(
                "Expected one gradient for each of the "
                f"{len(variables)} variables that {optimizer.name!r} was built "
                f"with. Received: {len(gradients)} gradients"
            )
    elif not optimizer.built:
        optimizer.build(list(variables))
        optimizer.built = True
    variables = list(variables)
    optimizer._check_variables_are_known(variables)
    kept = optimizer._filter_empty_gradients(gradients, variables)
    kept = optimizer._overwrite_variables_directly_with_gradients(*kept)
    return list(kept[0]), list(kept[1])


def require_built(optimizer: Any, variables: Sequence[Any] | None) -> list[Any]:
    """Builds an optimizer if needed, as Keras's `apply` does at first.

    Args:
        optimizer: A Keras optimizer.
        variables: The variables of `apply`; None for those it was built with.

    Returns:
        The variables.
    """
    if not optimizer.built:
        with name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)
        optimizer.built = True
    return list(variables or optimizer._trainable_variables)


def require_no_overrides(optimizer: Any) -> None:
    """Refuses an optimizer whose own code would not be called.

    Raises:
        UnsupportedError: If its class overrides a private method of Keras that
            runs on the worker.
    """
    for name in _overrides(optimizer, _REPLACED):
        raise errors.UnsupportedError(
            f"The optimizer {type(optimizer).__name__} has its own {name}(), "
            "which would read whole variables on the worker, and is replaced "
            "on parameter servers. Expected an optimizer that changes "
            "variables in update_step() alone. Received: "
            f"optimizer={optimizer.name!r}. Move what it does there."
        )


def run_update(
    optimizer: Any,
    update: Callable[[Sequence[Any], Any], None],
    gradients: Sequence[Any],
    variables: Sequence[Any],
) -> None:
    """Runs an update in place of Keras's loop over variables.

    Args:
        optimizer: A Keras optimizer.
        update: Takes pairs of a gradient and a variable's value, and the
            learning rate.
        gradients: Gradients, reduced over replicas.
        variables: The `keras.Variable` of each gradient.
    """
    rate = optimizer.learning_rate
    if not _overrides(optimizer, _AROUND_LOOP):
        values = map(value_of, variables)
        update(list(zip(gradients, values, strict=True)), rate)
        return

    def loop(_: Any, pairs: Sequence[Any], learning_rate: Any) -> None:
        update(pairs, learning_rate)

    # Nadam and some optimizers of users do additional work before or after the
    # loop. Only this object gets another loop, until the loop has run.
    vars(optimizer)[_LOOP] = loop
    try:
        optimizer._backend_update_step(gradients, variables, rate)
    finally:
        del vars(optimizer)[_LOOP]


def _overrides(optimizer: Any, methods: dict[str, Any]) -> list[str]:
    """Returns the names of methods that override those of the base class."""
    return [
        name
        for name, of_keras in methods.items()
        if getattr(type(optimizer), name) is not of_keras
    ]


def clips_by_itself(optimizer: Any) -> bool:
    """Returns whether the optimizer overrides Keras's clipping."""
    return type(optimizer)._clip_gradients is not _clip_of_keras


def momentum_schedule_of(optimizer: Any) -> Any:
    """Returns the scalar that Nadam updates once a step, or None."""
    if isinstance(optimizer, keras.optimizers.Nadam):
        return optimizer._u_product
    return None


def decays_weights_by_itself(optimizer: Any) -> bool:
    """Returns whether the optimizer overrides Keras's weight decay."""
    decay = type(optimizer)._apply_weight_decay
    return decay not in (
        _decay_of_keras,
        keras.optimizers.Muon._apply_weight_decay,
    )


def step_counter_of(optimizer: Any) -> keras.Variable:
    """Returns the variable that counts calls of `apply`.

    With gradient accumulation, `optimizer.iterations` counts updates instead.
    """
    return optimizer._iterations


def value_of(variable: Any) -> Any:
    """Returns TensorFlow's variable behind a variable of either library."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def path_of(variable: Any) -> str:
    """Returns the path of a Keras variable, or the name of a `tf.Variable`."""
    path: str = getattr(variable, "path", variable.name)
    return path


def weight_decay_of(optimizer: Any, variable: keras.Variable) -> float | None:
    """Returns the factor of a variable's weight decay, or None."""
    if decays_weights_by_itself(optimizer):
        return None
    if isinstance(optimizer, keras.optimizers.Muon) and uses_adamw(
        optimizer, variable
    ):
        return optimizer.adam_weight_decay
    return optimizer.weight_decay


def optimizer_of(multi_optimizer: Any, variable: keras.Variable) -> Any:
    """Returns the optimizer that a `MultiOptimizer` has for a variable."""
    return multi_optimizer._optimizer_map(variable)


def uses_adamw(muon: Any, variable: keras.Variable) -> bool:
    """Returns whether Muon leaves a variable to AdamW."""
    return muon._should_use_adamw(variable)


def strategy_of(optimizer: Any, default: Any = None) -> Any:
    """Returns the strategy that an optimizer was created under.

    Args:
        optimizer: A Keras optimizer, or None.
        default: Returned if there was no strategy.
    """
    return getattr(optimizer, "_distribution_strategy", default)


def learning_rate_behind(optimizer: Any) -> Any:
    """Returns the variable, schedule or callable behind `learning_rate`."""
    return getattr(optimizer, "_learning_rate", None)


def index_of(optimizer: Any, variable: keras.Variable) -> int:
    """Returns the position of a variable among those of a built optimizer."""
    index: int = optimizer._get_variable_index(variable)
    return index


def num_variables(optimizer: Any) -> int:
    """Returns the number of variables that a built optimizer trains."""
    return len(optimizer._trainable_variables)


def slots_of(optimizer: Any, name: str) -> Any:
    """Returns one slot for each variable of a built optimizer.

    Args:
        optimizer: A Keras optimizer.
        name: Name of the slots in the class, such as `"momentums"`.
    """
    return getattr(optimizer, f"_{name}")


def accumulator_of(optimizer: Any, variable: keras.Variable) -> Any:
    """Returns the slot that accumulates the gradients of a variable."""
    return optimizer._accumulated_gradients[index_of(optimizer, variable)]


def average_of(optimizer: Any, variable: keras.Variable) -> Any:
    """Returns the slot of a variable's moving average, or None."""
    averages = optimizer._model_variables_moving_average
    return averages[index_of(optimizer, variable)]


def overwrite_with_averages(optimizer: Any) -> None:
    """Assigns the moving averages to the variables, as Keras does."""
    optimizer._overwrite_model_variables_with_average_value(
        optimizer._trainable_variables
    )


def uses_weight_decay(optimizer: Any, variable: Any) -> bool:
    """Returns whether a variable is not excluded from weight decay."""
    return bool(optimizer._use_weight_decay(variable))


def clip_by_itself(optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
    """Clips gradients in the optimizer's own way (see `clips_by_itself`)."""
    return list(optimizer._clip_gradients(gradients))


def decay_by_itself(optimizer: Any, variables: Sequence[Any]) -> None:
    """Decays weights in the optimizer's own way."""
    optimizer._apply_weight_decay(variables)

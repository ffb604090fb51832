"""Tests of one optimizer step, against Keras's own `apply`."""

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfps_plugin.strategy import updates
from tfps_plugin.training.optimizers.step import OptimizerStep
from tfps_plugin.variables import testing
from tfps_plugin.variables.step_trace import StepTrace

_RANDOM = np.random.default_rng(0)
_TABLE = _RANDOM.normal(size=(5, 3)).astype("float32")
_WEIGHT = _RANDOM.normal(size=(3,)).astype("float32")
_NUM_STEPS = 4
_GRADIENTS = [
    [
        _RANDOM.normal(size=value.shape).astype("float32")
        for value in (_TABLE, _WEIGHT)
    ]
    for _ in range(_NUM_STEPS)
]

_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: keras.optimizers.SGD(0.1),
    "constraint": lambda: keras.optimizers.SGD(0.1),
    "constraint, averages": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.5
    ),
    "constraint, overwriting": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "constraint, accumulation": lambda: keras.optimizers.SGD(
        0.1, gradient_accumulation_steps=3
    ),
    "constraint, accumulation, averages": lambda: keras.optimizers.SGD(
        0.1, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.5
    ),
    "constraint, accumulation, overwriting": lambda: keras.optimizers.SGD(
        0.1,
        gradient_accumulation_steps=2,
        use_ema=True,
        ema_momentum=0.5,
        ema_overwrite_frequency=3,
    ),
    "slots": lambda: keras.optimizers.Adam(0.1),
    "own_step": lambda: keras.optimizers.Nadam(0.1),
    "decay": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
    "clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.5),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.1, global_clipnorm=0.5),
    "loss_scale": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=8.0),
    "averages": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.5
    ),
    "overwriting": lambda: keras.optimizers.Adam(
        0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2
    ),
    "accumulation": lambda: keras.optimizers.Adam(
        0.1, gradient_accumulation_steps=2
    ),
    "accumulation_averages": lambda: keras.optimizers.SGD(
        0.1, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.5
    ),
}


def _variables(name: str) -> list[keras.Variable]:
    table = keras.Variable(_TABLE, name="table")
    weight = keras.Variable(_WEIGHT, name="weight")
    if name.startswith("constraint"):
        table.constraint = keras.constraints.NonNeg()
    return [table, weight]


def _update(variable: Any, fn: Any, args: Any = (), **options: Any) -> Any:
    return updates.update(variable, fn, args, {}, exact=True)


# The attributes of a strategy that an optimizer and a step use.
_STRATEGY = types.SimpleNamespace(
    sparse_update="lazy", extended=types.SimpleNamespace(update=_update)
)


def _on_ps(name: str, optimizer: Any) -> list[keras.Variable]:
    """Builds an optimizer whose variables are those of parameter servers."""

    def create(next_creator: Any, **kwargs: Any) -> Any:
        value = kwargs["initial_value"]
        return testing.remote_variable(value() if callable(value) else value)

    with tf.variable_creator_scope(create):
        variables = _variables(name)
        optimizer.build(variables)
    for variable in variables:
        for slot in optimizer.variables:
            if slot.shape == variable.shape:
                variable.value.join_family(slot.value)
    optimizer._distribution_strategy = _STRATEGY
    return variables


def _rows(value: np.ndarray) -> Any:
    """Returns the same gradient by rows, one of them in two parts."""
    if value.ndim == 1:
        return tf.constant(value)
    ids = [3, 1, 0, 3, 2, 4]
    values = value[ids]
    values[[0, 3]] /= 2
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(ids), tf.constant([5, 3])
    )


_FORMS = [tf.constant, _rows]
# Averages of rows only change together with the rows.
_DENSE_ONLY = {
    "constraint, accumulation, averages",
    "constraint, accumulation, overwriting",
}


@pytest.mark.sample(cases=12)
@pytest.mark.parametrize(
    ("name", "form", "traced"),
    [
        *(
            (name, form, True)
            for name in _OPTIMIZERS
            for form in _FORMS
            if form is tf.constant or name not in _DENSE_ONLY
        ),
        ("slots", _rows, False),
        ("accumulation_averages", _rows, False),
    ],
)
def test_steps_have_the_numbers_of_keras(
    name: str, form: Callable[[np.ndarray], Any], traced: bool
) -> None:
    theirs, mine = _OPTIMIZERS[name](), _OPTIMIZERS[name]()
    their_variables = _variables(name)
    theirs.build(their_variables)
    my_variables = _on_ps(name, mine)

    def step(table: Any, weight: Any) -> None:
        trace = StepTrace.current()
        OptimizerStep(mine, my_variables, trace).run([table, weight])

    function = tf.function(step) if traced else step
    for gradients in _GRADIENTS:
        theirs.apply([tf.constant(g) for g in gradients], their_variables)
        function(*map(form, gradients))
    for their, my in zip(
        [*their_variables, *theirs.variables],
        [*my_variables, *mine.variables],
        strict=True,
    ):
        np.testing.assert_allclose(
            my.numpy(), their.numpy(), rtol=2e-5, atol=1e-6, err_msg=my.path
        )

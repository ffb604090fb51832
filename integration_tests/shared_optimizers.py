"""Optimizers whose numbers are compared with those of one process."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

_optimizers = keras.optimizers

EVERY: dict[str, Callable[[], Any]] = {
    "SGD": lambda: _optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda: _optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adam": lambda: _optimizers.Adam(0.01),
    "Adam, amsgrad": lambda: _optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: _optimizers.AdamW(0.01, weight_decay=0.1),
    "Adadelta": lambda: _optimizers.Adadelta(1.0),
    "Adagrad": lambda: _optimizers.Adagrad(0.1),
    "Adamax": lambda: _optimizers.Adamax(0.01),
    "Nadam": lambda: _optimizers.Nadam(0.01),
    "Ftrl": lambda: _optimizers.Ftrl(0.1),
    "Lion": lambda: _optimizers.Lion(0.01),
}
if hasattr(_optimizers, "ScheduleFreeAdamW"):
    # Since Keras 3.14.
    EVERY["ScheduleFreeAdamW"] = lambda: _optimizers.ScheduleFreeAdamW(0.01)

WHOLE_MATRIX: dict[str, Callable[[], Any]] = {
    "Lamb": lambda: _optimizers.Lamb(0.01),
    "Adafactor": lambda: _optimizers.Adafactor(0.01),
    "Muon": lambda: _optimizers.Muon(0.01, exclude_embeddings=False),
}

OPTIONS: dict[str, Callable[[], Any]] = {
    "schedule": lambda: _optimizers.Adam(
        _optimizers.schedules.ExponentialDecay(0.05, 5, 0.9)
    ),
    "clipnorm": lambda: _optimizers.Adam(0.01, clipnorm=0.01),
    "global_clipnorm": lambda: _optimizers.Adam(0.01, global_clipnorm=0.02),
    "clipvalue": lambda: _optimizers.SGD(0.1, clipvalue=0.001),
    "use_ema": lambda: _optimizers.Adam(
        0.01, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=7
    ),
    "accumulation": lambda: _optimizers.Adam(
        0.01, gradient_accumulation_steps=4, use_ema=True, global_clipnorm=0.02
    ),
    "loss_scale_factor": lambda: _optimizers.Adam(0.01, loss_scale_factor=8.0),
    "LossScaleOptimizer": lambda: _optimizers.LossScaleOptimizer(
        _optimizers.Adam(0.01), dynamic_growth_steps=10
    ),
}
if hasattr(_optimizers, "MultiOptimizer"):
    # Since Keras 3.15.
    OPTIONS["MultiOptimizer"] = lambda: _optimizers.MultiOptimizer(
        _optimizers.OptimizerMap(
            _optimizers.Adam(0.01), {".*embed.*": _optimizers.Adagrad(0.1)}
        )
    )


def summing(optimizer: Any) -> Any:
    """Makes an optimizer see dense gradients: the sums for repeated ids."""
    inner = [optimizer]
    if hasattr(optimizer, "inner_optimizer"):
        inner = [optimizer.inner_optimizer]
    elif hasattr(optimizer, "optimizers"):
        inner = optimizer.optimizers
    for each in inner:

        def apply(
            grads: Any,
            trainable_variables: Any = None,
            apply: Callable[..., None] = each.apply,
        ) -> None:
            apply([tf.convert_to_tensor(g) for g in grads], trainable_variables)

        each.apply = apply
    return optimizer

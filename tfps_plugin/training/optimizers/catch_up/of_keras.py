"""The closed forms of Keras's optimizers."""

from collections.abc import Callable
from typing import Any

import keras

from tfps_plugin import errors
from tfps_plugin.training.optimizers.catch_up import adam_family
from tfps_plugin.training.optimizers.catch_up import other_families
from tfps_plugin.training.optimizers.catch_up.zero_gradients import (
    ZeroGradients,
)

_KINDS: dict[Any, Callable[[Any], ZeroGradients]] = {
    keras.optimizers.SGD.update_step: other_families.Sgd,
    keras.optimizers.RMSprop.update_step: other_families.RmsProp,
    keras.optimizers.Adadelta.update_step: other_families.Adadelta,
    keras.optimizers.Adagrad.update_step: other_families.Adagrad,
    keras.optimizers.Ftrl.update_step: other_families.Ftrl,
    keras.optimizers.Lion.update_step: other_families.Lion,
    keras.optimizers.Adam.update_step: adam_family.Adam,
    keras.optimizers.Nadam.update_step: adam_family.Nadam,
    keras.optimizers.Adamax.update_step: adam_family.Adamax,
}


def zero_gradients(optimizer: Any) -> ZeroGradients:
    """Returns the closed forms of an optimizer's steps without a gradient.

    Args:
        optimizer: A built Keras optimizer.

    Raises:
        UnsupportedError: If no closed form is known for its class or settings.
    """
    kind = _KINDS.get(type(optimizer).update_step)
    if kind is None:
        known = sorted(
            {f.__qualname__.partition(".")[0] for f in _KINDS} | {"AdamW"}
        )
        raise errors.UnsupportedError(
            "sparse_update='caught_up' needs a closed form of the steps that "
            f"did not touch a row. Expected one of {', '.join(known)}, or a "
            "subclass that keeps its update_step(). Received: optimizer="
            f"{type(optimizer).__name__} ({optimizer.name!r}). Use "
            "sparse_update='exact' or 'lazy' with it."
        )
    return kind(optimizer)


def change_rows(optimizer: Any) -> bool:
    """Returns whether steps without a gradient change a row.

    Does not consider weight decay, which does so as well.

    Returns:
        True also for an optimizer of an unknown kind.
    """
    kind = _KINDS.get(type(optimizer).update_step)
    if kind is other_families.Sgd:
        return bool(optimizer.momentum)
    return kind is not other_families.Adagrad

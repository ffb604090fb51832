"""Refusals of optimizers that cannot make rounds of local steps."""

from typing import Any

from tfps_plugin import errors
from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.strategy import consistency as consistencies


def require_supported(optimizer: Any) -> None:
    """Refuses an optimizer that cannot apply the sums of several steps.

    Args:
        optimizer: A Keras optimizer of our strategy, perhaps a wrapper.

    Raises:
        UnsupportedError: If the strategy asks for it, and it cannot be right.
    """
    consistency = getattr(compat.strategy_of(optimizer), "consistency", None)
    local_steps = consistencies.local_steps_of(consistency)
    if local_steps == 1:
        return
    reason = _reason_against(optimizer)
    if reason is None:
        return
    raise errors.UnsupportedError(
        f"local_steps={local_steps} is not supported with this "
        f"optimizer: {reason}. Expected an optimizer that updates all "
        "variables each time it is applied, such as SGD or Adam. Received: "
        f"optimizer={type(optimizer).__name__}, consistency={consistency}. Use "
        "another optimizer, or train with tfps.Async()."
    )


def _reason_against(optimizer: Any) -> str | None:
    if isinstance(optimizer, compat.MultiOptimizer):
        return "it counts steps, and those within it count updates"
    if hasattr(optimizer, "inner_optimizer"):
        return "it decides in each step whether to update"
    if optimizer.gradient_accumulation_steps:
        return (
            "with gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps} weights stay as they are "
            "for some steps, and local steps move them in each"
        )
    return None

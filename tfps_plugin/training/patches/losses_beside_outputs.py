"""Losses and metrics of outputs that a parameter server has computed.

The outputs of a wide layer are larger than what it was given. If the layer
computes on its parameter server (`tfps.on_ps`), its outputs stay there, and
the loss of each example travels.
"""

import functools
from collections.abc import Callable
from typing import Any

from tfps_plugin.strategy.placement import ps_computation


def loss_beside_outputs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `Trainer.compute_loss` that computes where outputs are."""

    @functools.wraps(original)
    def compute_loss(
        self: Any,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with ps_computation.beside(y_pred):
            return original(self, x, y, y_pred, *args, **kwargs)

    return compute_loss


def metrics_beside_outputs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `Trainer.compute_metrics` that computes where outputs are."""

    @functools.wraps(original)
    def compute_metrics(
        self: Any, x: Any, y: Any, y_pred: Any, *args: Any, **kwargs: Any
    ) -> Any:
        with ps_computation.beside(y_pred):
            return original(self, x, y, y_pred, *args, **kwargs)

    return compute_metrics

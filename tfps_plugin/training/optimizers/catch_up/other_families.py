"""SGD, RMSprop, Adadelta, Adagrad, Ftrl and Lion without a gradient.

Shape legend: U rows, D the rest of a row's shape.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.training.optimizers.catch_up.gap import Gap
from tfps_plugin.training.optimizers.catch_up.zero_gradients import TABLE
from tfps_plugin.training.optimizers.catch_up.zero_gradients import (
    ZeroGradients,
)
from tfps_plugin.training.optimizers.catch_up.zero_gradients import (
    no_closed_form,
)


class Sgd(ZeroGradients):
    """SGD: momentum goes on and fades; Nesterov's is a step ahead."""

    def moves_table(self, decay: float | None) -> bool:
        return bool(decay or self._optimizer.momentum)

    def rate_limit(
        self, decay: float | None, *, is_scheduled: bool
    ) -> float | None:
        return _rate_limit(self._optimizer.momentum, decay, is_scheduled)

    def slot_lists(self) -> dict[str, Any]:
        return (
            {"momentum": self._optimizer.momentums}
            if self._optimizer.momentum
            else {}
        )

    def table(self, values: Mapping[str, tf.Tensor], gap: Gap) -> tf.Tensor:
        optimizer = self._optimizer
        table_UD = gap.shrunk(values[TABLE])
        if not optimizer.momentum:
            return table_UD
        length = gap.faded_sum(optimizer.momentum)
        if optimizer.nesterov:
            length *= optimizer.momentum
        return table_UD + values["momentum"] * length

    def slot(self, key: str, value: tf.Tensor, gap: Gap) -> tf.Tensor:
        return value * gap.faded(self._optimizer.momentum)


class RmsProp(ZeroGradients):
    """RMSprop: averages fade; momentum goes on."""

    def moves_table(self, decay: float | None) -> bool:
        return bool(decay or self._optimizer.momentum > 0)

    def rate_limit(
        self, decay: float | None, *, is_scheduled: bool
    ) -> float | None:
        return _rate_limit(self._optimizer.momentum, decay, is_scheduled)

    def slot_lists(self) -> dict[str, Any]:
        optimizer = self._optimizer
        lists = {"velocity": compat.slots_of(optimizer, "velocities")}
        if optimizer.momentum > 0:
            lists["momentum"] = compat.slots_of(optimizer, "momentums")
        if optimizer.centered:
            lists["average"] = compat.slots_of(optimizer, "average_gradients")
        return lists

    def table(self, values: Mapping[str, tf.Tensor], gap: Gap) -> tf.Tensor:
        optimizer = self._optimizer
        table_UD = gap.shrunk(values[TABLE])
        if not optimizer.momentum > 0:
            return table_UD
        length = gap.faded_sum(optimizer.momentum)
        return table_UD - values["momentum"] * length

    def slot(self, key: str, value: tf.Tensor, gap: Gap) -> tf.Tensor:
        optimizer = self._optimizer
        factor = optimizer.momentum if key == "momentum" else optimizer.rho
        return value * gap.faded(factor)


class Adadelta(ZeroGradients):
    """Adadelta: both averages fade; the weights stay."""

    def moves_table(self, decay: float | None) -> bool:
        return bool(decay)

    def slot_lists(self) -> dict[str, Any]:
        return {
            "gradient": compat.slots_of(self._optimizer, "accumulated_grads"),
            "delta": compat.slots_of(self._optimizer, "accumulated_delta_vars"),
        }

    def slot(self, key: str, value: tf.Tensor, gap: Gap) -> tf.Tensor:
        return value * gap.faded(self._optimizer.rho)


class Adagrad(ZeroGradients):
    """Adagrad: nothing changes except by weight decay."""

    def moves_table(self, decay: float | None) -> bool:
        return bool(decay)

    def slot_lists(self) -> dict[str, Any]:
        return {}


class Ftrl(ZeroGradients):
    """Ftrl: the weights follow from the slots, which stay."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        if optimizer.l2_shrinkage_regularization_strength:
            raise no_closed_form(
                optimizer,
                "l2_shrinkage_regularization_strength="
                f"{optimizer.l2_shrinkage_regularization_strength!r}",
                "0.0",
            )

    def slot_lists(self) -> dict[str, Any]:
        return {
            "accumulator": compat.slots_of(self._optimizer, "accumulators"),
            "linear": compat.slots_of(self._optimizer, "linears"),
        }

    def table(self, values: Mapping[str, tf.Tensor], gap: Gap) -> tf.Tensor:
        optimizer = self._optimizer
        accumulator, linear = values["accumulator"], values["linear"]
        l1 = optimizer.l1_regularization_strength
        l2 = optimizer.l2_regularization_strength
        quadratic = (
            tf.pow(accumulator, -optimizer.learning_rate_power) / gap.rate
            + 2 * l2
            + optimizer.beta / gap.rate
        )
        follows = (tf.clip_by_value(linear, -l1, l1) - linear) / quadratic
        return tf.where(gap.steps > 0, follows, values[TABLE])


class Lion(ZeroGradients):
    """Lion: the sign of the momentum stays, so all steps have one length."""

    needs_elapsed = True

    def slot_lists(self) -> dict[str, Any]:
        return {"momentum": compat.slots_of(self._optimizer, "momentums")}

    def table(self, values: Mapping[str, tf.Tensor], gap: Gap) -> tf.Tensor:
        # Sum of all steps, each shrunk by the steps after it.
        length: Any = gap.elapsed
        if gap.decay:
            length = -tf.math.expm1(-gap.decay * length) / gap.decay
        return gap.shrunk(values[TABLE]) - tf.sign(values["momentum"]) * length

    def slot(self, key: str, value: tf.Tensor, gap: Gap) -> tf.Tensor:
        return value * gap.faded(self._optimizer.beta_2)


def _rate_limit(
    momentum: float, decay: float | None, is_scheduled: bool
) -> float | None:
    """Returns the limit of learning rates with momentum and weight decay."""
    if not decay:
        return None
    if momentum and is_scheduled:
        # Above it, the moves of rows depend on the order of the rates.
        return (1 - momentum) / decay
    return 1 / decay

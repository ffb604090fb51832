"""Adam, AdamW, Nadam and Adamax without a gradient.

Shape legend: U rows, D the rest of a row's shape, K terms of a potential.
"""

import abc
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras_optimizers as compat
from tfps_plugin.training.optimizers.catch_up.gap import Gap
from tfps_plugin.training.optimizers.catch_up.zero_gradients import TABLE
from tfps_plugin.training.optimizers.catch_up.zero_gradients import Schedule
from tfps_plugin.training.optimizers.catch_up.zero_gradients import (
    ZeroGradients,
)
from tfps_plugin.training.optimizers.catch_up.zero_gradients import (
    no_closed_form,
)

# Terms of a potential below this fraction of the first are omitted.
_NEGLIGIBLE = 1e-10
# More terms would slow down every step noticeably.
_MAX_TERMS = 1 << 16
# The ratio that needs exactly this many terms.
_MAX_RATIO = math.exp(math.log(_NEGLIGIBLE) / _MAX_TERMS)


class _Adaptive(ZeroGradients):
    """A momentum that fades faster than the scale it is divided by."""

    has_potential = True

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        if not 0 <= self._ratio < 1:
            raise no_closed_form(
                optimizer,
                f"beta_1={optimizer.beta_1!r}, beta_2={optimizer.beta_2!r}",
                "a beta_1 that fades faster than the scale of beta_2",
            )
        self._num_terms = 1
        if self._ratio:
            self._num_terms = math.ceil(
                math.log(_NEGLIGIBLE) / math.log(self._ratio)
            )
        if self._num_terms > _MAX_TERMS:
            raise no_closed_form(
                optimizer, f"beta_1={optimizer.beta_1!r}", "a smaller beta_1"
            )

    def moves_table(self, decay: float | None) -> bool:
        return bool(decay or self._ratio)

    def rate_limit(
        self, decay: float | None, *, is_scheduled: bool
    ) -> float | None:
        del is_scheduled
        return (1 - self._ratio / _MAX_RATIO) / decay if decay else None

    @property
    @abc.abstractmethod
    def _ratio(self) -> float:
        """Factor between the move of a step and that of the next."""

    @abc.abstractmethod
    def _correction(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the bias corrections of steps, by number."""

    def potential(
        self,
        step: tf.Tensor,
        rate: tf.Tensor,
        decay: float | None,
        rates: Schedule | None = None,
        largest_rate: float = 0.0,
    ) -> tf.Tensor:
        """See `ZeroGradients.potential`.

        A later rate without a closed form is an error when the step runs.
        """
        if not self._ratio:
            return tf.zeros_like(rate)
        numbers_K: Any = np.arange(1, self._num_terms + 1, dtype=np.float64)
        if decay:
            numbers_K = self._numbers_of_terms(
                tf.maximum(rate, largest_rate), decay
            )
        steps_K = step + numbers_K
        rates_K = tf.fill(tf.shape(steps_K), rate)
        if rates is not None:
            rates_K = rates(steps_K)
        weights_K = self._ratio**numbers_K
        last_ratio: Any = self._ratio
        if decay:
            if rates is not None:
                rates_K = self.within_limit(
                    rates_K, tf.reduce_max(rates_K), decay, is_scheduled=True
                )
            left_K = 1 - decay * rates_K
            weights_K = tf.math.cumprod(self._ratio / left_K)
            last_ratio = self._ratio / left_K[-1]
        # After the last term, the remainder is a geometric series.
        lengths_K = weights_K * self._correction(steps_K) * rates_K
        rest = lengths_K[-1] * (last_ratio / (1 - last_ratio))
        return tf.reduce_sum(lengths_K) + rest

    def _numbers_of_terms(self, rate: tf.Tensor, decay: float) -> tf.Tensor:
        """Returns 1, 2, ... for all terms that count at a learning rate."""
        ratio = tf.minimum(self._ratio / (1 - decay * rate), _MAX_RATIO)
        num_terms = tf.math.ceil(math.log(_NEGLIGIBLE) / tf.math.log(ratio))
        return tf.range(1, tf.minimum(num_terms, _MAX_TERMS) + 1)

    def slot(self, key: str, value: tf.Tensor, gap: Gap) -> tf.Tensor:
        optimizer = self._optimizer
        if key == "maximum":
            return value
        return value * gap.faded(
            optimizer.beta_1 if key == "momentum" else optimizer.beta_2
        )


class Adam(_Adaptive):
    """Adam and AdamW, with or without amsgrad."""

    def __init__(self, optimizer: Any) -> None:
        # Nadam does not have it.
        self._amsgrad = bool(getattr(optimizer, "amsgrad", False))
        super().__init__(optimizer)

    @property
    def _ratio(self) -> float:
        optimizer = self._optimizer
        if self._amsgrad:
            return float(optimizer.beta_1)
        return float(optimizer.beta_1 / math.sqrt(optimizer.beta_2))

    def slot_lists(self) -> dict[str, Any]:
        optimizer = self._optimizer
        lists = {
            "momentum": compat.slots_of(optimizer, "momentums"),
            "velocity": compat.slots_of(optimizer, "velocities"),
        }
        if self._amsgrad:
            lists["maximum"] = compat.slots_of(optimizer, "velocity_hats")
        return lists

    def _correction(self, step: tf.Tensor) -> tf.Tensor:
        optimizer = self._optimizer
        return tf.sqrt(1 - tf.pow(_wide(optimizer.beta_2), step)) / (
            1 - tf.pow(_wide(optimizer.beta_1), step)
        )

    @property
    def _scale(self) -> str:
        """Slot whose square root divides a move."""
        return "maximum" if self._amsgrad else "velocity"

    def _epsilon(self, gap: Gap) -> Any:
        """Returns the epsilon to add to a root that shrinks with beta_2."""
        optimizer = self._optimizer
        if self._amsgrad:
            return optimizer.epsilon
        half = -0.5 * math.log(optimizer.beta_2)
        return optimizer.epsilon * tf.exp(half * gap.mean_step(self._ratio))

    def table(self, values: Mapping[str, tf.Tensor], gap: Gap) -> tf.Tensor:
        scale_UD = tf.sqrt(values[self._scale]) + self._epsilon(gap)
        moved_UD = gap.moved(self._ratio) * values["momentum"]
        return gap.shrunk(values[TABLE]) - moved_UD / scale_UD


class Nadam(Adam):
    """Adam with the momentum of the next step."""

    def _correction(self, step: tf.Tensor) -> tf.Tensor:
        optimizer = self._optimizer
        numbers = np.arange(1, self._num_terms + 2, dtype=np.float64)
        products = np.cumprod(
            optimizer.beta_1 * (1 - 0.5 * np.power(0.96, numbers))
        )
        # Product of the factors of steps 1 to `step + 1`, which are below
        # beta_1: after the last term it makes no difference.
        index = tf.minimum(tf.cast(step, tf.int64), len(products) - 1)
        product = tf.gather(tf.constant(products), index)
        factor = optimizer.beta_1 * (1 - 0.5 * tf.pow(_wide(0.96), step + 1))
        return (
            factor
            / (1 - product)
            * tf.sqrt(1 - tf.pow(_wide(optimizer.beta_2), step))
        )

    def _epsilon(self, gap: Gap) -> Any:
        # Here Keras adds it to the root of the corrected velocity.
        optimizer = self._optimizer
        step = gap.last_step - gap.steps + gap.mean_step(self._ratio)
        correction = tf.sqrt(-tf.math.expm1(step * math.log(optimizer.beta_2)))
        return super()._epsilon(gap) * correction


class Adamax(_Adaptive):
    """Adam with the largest gradient as the scale."""

    @property
    def _ratio(self) -> float:
        return float(self._optimizer.beta_1 / self._optimizer.beta_2)

    def slot_lists(self) -> dict[str, Any]:
        return {
            "momentum": compat.slots_of(self._optimizer, "m"),
            "norm": compat.slots_of(self._optimizer, "u"),
        }

    def _correction(self, step: tf.Tensor) -> tf.Tensor:
        return 1 / (1 - tf.pow(_wide(self._optimizer.beta_1), step))

    def table(self, values: Mapping[str, tf.Tensor], gap: Gap) -> tf.Tensor:
        optimizer = self._optimizer
        epsilon = optimizer.epsilon * tf.exp(
            -math.log(optimizer.beta_2) * gap.mean_step(self._ratio)
        )
        moved_UD = gap.moved(self._ratio) * values["momentum"]
        return gap.shrunk(values[TABLE]) - moved_UD / (values["norm"] + epsilon)


def _wide(value: float | tf.Tensor) -> tf.Tensor:
    return tf.convert_to_tensor(value, tf.float64)

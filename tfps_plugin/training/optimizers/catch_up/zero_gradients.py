"""Closed forms of optimizer steps whose gradient is zero.

An optimizer with momentum, weight decay or moving averages changes a row also
in steps whose batch did not contain it: a dense update has a gradient of zero
there. Such steps are linear in the row, so any number of them has a closed
form (Lipton and Elkan, "Efficient Elastic Net Regularization for Sparse Linear
Models", 2015, for SGD; geometric sums for the others).

Symbols, for one row that was last updated in step `s` and then not in `n`
steps: `m`, `v` are its moments after step `s`, `c(t)` is the correction of the
bias in step `t`, `lr(t)` the learning rate, `wd` the weight decay. Adam's row
moves by

    - sum over k = 1 ... n of lr(s + k) c(s + k) r**k  *  m / sqrt(v),

where `r = beta_1 / sqrt(beta_2)`. With the *potential* `P(t)`, the same sum
from step `t` without an end, it is `P(s) - r**n P(s + n)`. The potential of
the present step is one number for all rows, so a row need only remember that
of its own last step.

Errors: the sums are exact while the learning rate is constant or follows a
schedule. If it is assigned and changes by a factor `1 + d` during the
`1 / (1 - r)` steps that follow `s` (ten, for Adam's defaults), the move is
wrong by that factor at most. What it does to weight decay and to Lion is
exact. Adam, Nadam and Adamax add `epsilon` to a root that shrinks from step to
step; here it has shrunk as in the mean one. That is wrong by less than
`(epsilon / root) / 10**4` of the move where the root is above `epsilon`, and by
1 % where it is far below.

Shape legend: U rows, D the rest of a row's shape. Tensors of one number for
each row have the shape `(U, 1, ...)`, of the rows' rank.
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin import errors

# The key of the table itself among the values of a row.
TABLE = "table"
# Terms of a potential below this part of the first are left out.
_NEGLIGIBLE = 1e-10
# More terms than that would be felt in every step.
_MAX_TERMS = 1 << 16


# From numbers of steps, float64, to the learning rates of these steps.
Schedule = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Gap:
    """The steps that passed since each row was updated, as tensors.

    Attributes:
        steps: How many; 0 for none.
        last_step: Number of the optimizer's newest step, a scalar.
        elapsed: Sum of the learning rates; with weight decay
            `-log(1 - wd * lr) / wd` in the place of each.
        potential_then: Potential after the step that updated the row.
        potential_now: Potential after the newest step.
        rate: Learning rate of the newest step, a scalar.
        decay: The weight decay; None: the table has none.
    """

    steps: tf.Tensor
    last_step: tf.Tensor
    elapsed: tf.Tensor
    potential_then: tf.Tensor
    potential_now: tf.Tensor
    rate: tf.Tensor
    decay: float | None = None

    @property
    def shrinkage(self) -> tf.Tensor:
        """Factor that weight decay alone has multiplied the weights by."""
        if not self.decay:
            return tf.ones_like(self.elapsed)
        return tf.exp(-self.decay * self.elapsed)

    def faded(self, factor: float) -> tf.Tensor:
        """Power of a factor: what the steps leave of a moving average."""
        if not factor:
            return tf.cast(tf.equal(self.steps, 0), self.steps.dtype)
        return tf.exp(self.steps * math.log(factor))

    def faded_sum(self, factor: float) -> tf.Tensor:
        """Sum of the powers from 1 on, each shrunk by the steps after it."""
        shrunk = self._shrunk(factor)
        left = tf.pow(shrunk, self.steps)
        return self.shrinkage * shrunk * (1 - left) / (1 - shrunk)

    def moved(self, ratio: float) -> tf.Tensor:
        """Sum of a series that has a potential, shrunk likewise."""
        left = tf.pow(self._shrunk(ratio), self.steps)
        return self.shrinkage * (
            self.potential_then - left * self.potential_now
        )

    def mean_step(self, ratio: float) -> tf.Tensor:
        """Mean number of a step, each weighted by a power of `ratio`."""
        left = tf.pow(tf.constant(ratio, self.steps.dtype), self.steps)
        # For no step, any number is as good.
        behind = tf.math.divide_no_nan(self.steps * left, 1 - left)
        return 1 / (1 - ratio) - behind

    def _shrunk(self, factor: float) -> tf.Tensor:
        return _relative_to_decay(factor, self.rate, self.decay)


class ZeroGradients(abc.ABC):
    """Steps of one kind of optimizer, in which rows have no gradient.

    Threading: immutable.
    """

    # Whether `potential` is of use.
    has_potential = False

    def __init__(self, optimizer: Any) -> None:
        """Reads the settings.

        Args:
            optimizer: A Keras optimizer of that kind.

        Raises:
            UnsupportedError: If its settings have no closed form.
        """
        self._optimizer = optimizer

    @abc.abstractmethod
    def slot_lists(self) -> dict[str, Any]:
        """Lists of slots that change, one entry for each variable."""

    @abc.abstractmethod
    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
        """Values of rows after the steps of a gap.

        Args:
            values: Rows of the table (`TABLE`) and of its slots, by the keys
                of `slot_lists`, shape `(U, D)`, as of their last update.
            gap: The steps, in the dtype of the values.

        Returns:
            The same of now.
        """

    def potential(
        self,
        step: tf.Tensor,
        rate: tf.Tensor,
        decay: float | None,
        rates: Schedule | None = None,
    ) -> tf.Tensor:
        """Potential after a step.

        Args:
            step: Number of steps done, a float64 scalar.
            rate: Learning rate of the latest, a float64 scalar.
            decay: The weight decay; None: there is none.
            rates: Gives the learning rates of later steps; None: they are
                that of the latest.

        Returns:
            A float64 scalar.
        """
        del step, rate, decay, rates
        return tf.zeros([], tf.float64)


class _Sgd(ZeroGradients):
    """Momentum goes on and fades; Nesterov's is a step ahead."""

    def slot_lists(self) -> dict[str, Any]:
        return (
            {"momentum": self._optimizer.momentums}
            if self._optimizer.momentum
            else {}
        )

    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
        optimizer = self._optimizer
        table = values[TABLE] * gap.shrinkage
        if not optimizer.momentum:
            return {TABLE: table}
        momentum = values["momentum"]
        moved = momentum * gap.faded_sum(optimizer.momentum)
        if optimizer.nesterov:
            moved *= optimizer.momentum
        return {
            TABLE: table + moved,
            "momentum": momentum * gap.faded(optimizer.momentum),
        }


class _RmsProp(ZeroGradients):
    """Averages fade; momentum goes on."""

    def slot_lists(self) -> dict[str, Any]:
        optimizer = self._optimizer
        lists = {"velocity": optimizer._velocities}
        if optimizer.momentum > 0:
            lists["momentum"] = optimizer._momentums
        if optimizer.centered:
            lists["average"] = optimizer._average_gradients
        return lists

    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
        optimizer = self._optimizer
        faded = gap.faded(optimizer.rho)
        result = {
            name: values[name] * faded
            for name in ("velocity", "average")
            if name in values
        }
        table = values[TABLE] * gap.shrinkage
        if "momentum" in values:
            momentum = values["momentum"]
            table -= momentum * gap.faded_sum(optimizer.momentum)
            result["momentum"] = momentum * gap.faded(optimizer.momentum)
        return {TABLE: table, **result}


class _Adadelta(ZeroGradients):
    """Both averages fade; the weights stay."""

    def slot_lists(self) -> dict[str, Any]:
        return {
            "gradient": self._optimizer._accumulated_grads,
            "delta": self._optimizer._accumulated_delta_vars,
        }

    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
        faded = gap.faded(self._optimizer.rho)
        return {
            TABLE: values[TABLE] * gap.shrinkage,
            "gradient": values["gradient"] * faded,
            "delta": values["delta"] * faded,
        }


class _Adagrad(ZeroGradients):
    """Nothing changes but for weight decay."""

    def slot_lists(self) -> dict[str, Any]:
        return {}

    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
        return {TABLE: values[TABLE] * gap.shrinkage}


class _Ftrl(ZeroGradients):
    """The weights follow from the slots, which stay."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        if optimizer.l2_shrinkage_regularization_strength:
            raise _no_closed_form(
                optimizer,
                "l2_shrinkage_regularization_strength="
                f"{optimizer.l2_shrinkage_regularization_strength!r}",
                "0.0",
            )

    def slot_lists(self) -> dict[str, Any]:
        return {
            "accumulator": self._optimizer._accumulators,
            "linear": self._optimizer._linears,
        }

    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
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
        return {
            TABLE: tf.where(gap.steps > 0, follows, values[TABLE]),
            "accumulator": accumulator,
            "linear": linear,
        }


class _Lion(ZeroGradients):
    """Every step is as long: the sign of the momentum stays."""

    def slot_lists(self) -> dict[str, Any]:
        return {"momentum": self._optimizer._momentums}

    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
        momentum = values["momentum"]
        # The sum of all steps, each shrunk by those that follow it.
        length = gap.elapsed
        if gap.decay:
            length = -tf.math.expm1(-gap.decay * length) / gap.decay
        return {
            TABLE: values[TABLE] * gap.shrinkage - tf.sign(momentum) * length,
            "momentum": momentum * gap.faded(self._optimizer.beta_2),
        }


class _Adaptive(ZeroGradients):
    """A momentum that fades faster than the scale it is divided by."""

    has_potential = True

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        if not 0 <= self._ratio < 1:
            raise _no_closed_form(
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
            raise _no_closed_form(
                optimizer, f"beta_1={optimizer.beta_1!r}", "a smaller beta_1"
            )

    @property
    @abc.abstractmethod
    def _ratio(self) -> float:
        """Factor between a step's move and the next one's."""

    @abc.abstractmethod
    def _correction(self, step: tf.Tensor) -> tf.Tensor:
        """Correction of the bias in steps of these numbers."""

    def potential(
        self,
        step: tf.Tensor,
        rate: tf.Tensor,
        decay: float | None,
        rates: Schedule | None = None,
    ) -> tf.Tensor:
        """See `ZeroGradients.potential`."""
        ratio = _relative_to_decay(self._ratio, rate, decay)
        steps = step + tf.range(1, self._num_terms + 1, dtype=tf.float64)
        weights = tf.pow(ratio, steps - step)
        lengths = self._correction(steps) * (
            rate if rates is None else rates(steps)
        )
        # Behind the last term, lengths change no more.
        rest = weights[-1] * ratio / (1 - ratio) * lengths[-1]
        return tf.reduce_sum(weights * lengths) + rest


class _Adam(_Adaptive):
    """Adam and AdamW, with or without amsgrad."""

    @property
    def _ratio(self) -> float:
        optimizer = self._optimizer
        if optimizer.amsgrad:
            return float(optimizer.beta_1)
        return float(optimizer.beta_1 / math.sqrt(optimizer.beta_2))

    def slot_lists(self) -> dict[str, Any]:
        optimizer = self._optimizer
        lists = {
            "momentum": optimizer._momentums,
            "velocity": optimizer._velocities,
        }
        if optimizer.amsgrad:
            lists["maximum"] = optimizer._velocity_hats
        return lists

    def _correction(self, step: tf.Tensor) -> tf.Tensor:
        optimizer = self._optimizer
        return tf.sqrt(1 - tf.pow(_wide(optimizer.beta_2), step)) / (
            1 - tf.pow(_wide(optimizer.beta_1), step)
        )

    def _epsilon(self, gap: Gap) -> Any:
        """What is added to a root that shrinks with beta_2."""
        optimizer = self._optimizer
        if "maximum" in self.slot_lists():
            return optimizer.epsilon
        half = -0.5 * math.log(optimizer.beta_2)
        return optimizer.epsilon * tf.exp(half * gap.mean_step(self._ratio))

    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
        optimizer = self._optimizer
        momentum, velocity = values["momentum"], values["velocity"]
        scale = tf.sqrt(values.get("maximum", velocity)) + self._epsilon(gap)
        moved = gap.moved(self._ratio)
        return {
            **values,
            TABLE: values[TABLE] * gap.shrinkage - moved * momentum / scale,
            "momentum": momentum * gap.faded(optimizer.beta_1),
            "velocity": velocity * gap.faded(optimizer.beta_2),
        }


class _Nadam(_Adam):
    """Adam whose momentum is that of the next step."""

    # A product of factors below beta_1: later ones make no difference.
    @property
    def _ratio(self) -> float:
        optimizer = self._optimizer
        return float(optimizer.beta_1 / math.sqrt(optimizer.beta_2))

    def slot_lists(self) -> dict[str, Any]:
        return {
            "momentum": self._optimizer._momentums,
            "velocity": self._optimizer._velocities,
        }

    def _correction(self, step: tf.Tensor) -> tf.Tensor:
        optimizer = self._optimizer
        numbers = np.arange(1, self._num_terms + 2, dtype=np.float64)
        products = np.cumprod(
            optimizer.beta_1 * (1 - 0.5 * np.power(0.96, numbers))
        )
        # Product over the factors of steps 1 to `step + 1`.
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


class _Adamax(_Adaptive):
    """Adam with the largest gradient as the scale."""

    @property
    def _ratio(self) -> float:
        return float(self._optimizer.beta_1 / self._optimizer.beta_2)

    def slot_lists(self) -> dict[str, Any]:
        return {"momentum": self._optimizer._m, "norm": self._optimizer._u}

    def _correction(self, step: tf.Tensor) -> tf.Tensor:
        return 1 / (1 - tf.pow(_wide(self._optimizer.beta_1), step))

    def after(
        self, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> dict[str, tf.Tensor]:
        optimizer = self._optimizer
        momentum, norm = values["momentum"], values["norm"]
        epsilon = optimizer.epsilon * tf.exp(
            -math.log(optimizer.beta_2) * gap.mean_step(self._ratio)
        )
        moved = gap.moved(self._ratio)
        return {
            TABLE: values[TABLE] * gap.shrinkage
            - moved * momentum / (norm + epsilon),
            "momentum": momentum * gap.faded(optimizer.beta_1),
            "norm": norm * gap.faded(optimizer.beta_2),
        }


_OF_KERAS: dict[Any, Callable[[Any], ZeroGradients]] = {
    keras.optimizers.SGD.update_step: _Sgd,
    keras.optimizers.RMSprop.update_step: _RmsProp,
    keras.optimizers.Adadelta.update_step: _Adadelta,
    keras.optimizers.Adagrad.update_step: _Adagrad,
    keras.optimizers.Ftrl.update_step: _Ftrl,
    keras.optimizers.Lion.update_step: _Lion,
    keras.optimizers.Adam.update_step: _Adam,
    keras.optimizers.Nadam.update_step: _Nadam,
    keras.optimizers.Adamax.update_step: _Adamax,
}


def of(optimizer: Any) -> ZeroGradients:
    """Steps of an optimizer that rows have no gradient in.

    Args:
        optimizer: A Keras optimizer that is built.

    Raises:
        UnsupportedError: If no closed form is known for its class or its
            settings.
    """
    kind = _OF_KERAS.get(type(optimizer).update_step)
    if kind is None:
        known = sorted(
            {f.__qualname__.partition(".")[0] for f in _OF_KERAS} | {"AdamW"}
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
    """Whether steps without a gradient change a row, but for weight decay.

    Args:
        optimizer: A Keras optimizer.

    Returns:
        True also for an optimizer of an unknown kind.
    """
    kind = _OF_KERAS.get(type(optimizer).update_step)
    if kind is _Sgd:
        return bool(optimizer.momentum)
    return kind is not _Adagrad


def _no_closed_form(
    optimizer: Any, received: str, expected: str
) -> errors.UnsupportedError:
    return errors.UnsupportedError(
        "sparse_update='caught_up' has no closed form for this setting of "
        f"{type(optimizer).__name__} ({optimizer.name!r}). Expected: "
        f"{expected}. Received: {received}. Use sparse_update='exact' or "
        "'lazy' with it."
    )


def _relative_to_decay(
    factor: float, rate: tf.Tensor, decay: float | None
) -> tf.Tensor:
    """A factor between steps, in units of what weight decay leaves."""
    return tf.constant(factor, rate.dtype) / (1 - (decay or 0.0) * rate)


def _wide(value: float) -> tf.Tensor:
    return tf.constant(value, tf.float64)

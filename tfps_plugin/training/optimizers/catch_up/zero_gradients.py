"""Closed forms of optimizer steps whose gradient is zero.

An optimizer with momentum, weight decay or moving averages also changes a row
in steps whose batch does not contain it: a dense update has a gradient of zero
there. Such steps are linear in the row, so any number of them has a closed
form (Lipton and Elkan, "Efficient Elastic Net Regularization for Sparse Linear
Models", 2015, for SGD; geometric sums for the others).

Symbols, for one row that was last updated in step `s`, followed by `n` steps
without it: `m`, `v` are its moments after step `s`, `c(t)` is the bias
correction in step `t`, `lr(t)` the learning rate, `wd` the weight decay. With
Adam, the row moves by

    - sum over k = 1 ... n of lr(s + k) c(s + k) r**k  *  m / sqrt(v),

where `r = beta_1 / sqrt(beta_2)`. With the *potential* `P(t)`, the infinite sum
from step `t` on, it is `P(s) - r**n P(s + n)`. The potential of the present
step is one number for all rows, so a row need only remember that of its own
last step.

With weight decay, a step multiplies the weights by `d = 1 - wd lr`: in the
sums, `r / d` replaces `r`, and the result is multiplied by `d**n`. A potential
is finite while `r / d` is below 1; sums of SGD and RMSprop need no potential,
and hold beyond that (`rate_limit`).

Errors: the sums are exact while the learning rate is constant or follows a
schedule. Those of SGD and RMSprop with momentum and weight decay use the mean
of `log d` for each step, so they are exact while the rate is constant. If the
rate is assigned and changes by a factor `1 + x` during the `1 / (1 - r)` steps
after `s` (ten, for Adam's defaults), the move is wrong by at most that factor.
The effects on weight decay and on Lion are exact. Adam, Nadam and Adamax add
`epsilon` to a root that shrinks from step to step; here it is the root of the
mean step. The error is less than `(epsilon / root) / 10**4` of the move if the
root is above `epsilon`, and 1 % if it is far below.

The optimizers are in `adam_family` and `other_families`.

Shape legend: U rows, D the rest of a row's shape.
"""

import abc
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin.training.optimizers.catch_up import moment
from tfps_plugin.training.optimizers.catch_up.gap import Gap
from tfps_plugin.variables.lookup import graph_checks

# The key of the table itself among the values of a row.
TABLE = "table"

# Maps numbers of steps, float64, to the learning rates of these steps.
Schedule = Callable[[tf.Tensor], tf.Tensor]


class ZeroGradients(abc.ABC):
    """Steps of one kind of optimizer in which rows have no gradient.

    Threading: immutable.
    """

    # Whether gaps need the sum of learning rates, and a potential.
    needs_elapsed = False
    has_potential = False

    def __init__(self, optimizer: Any) -> None:
        """Reads the settings.

        Args:
            optimizer: A Keras optimizer of that kind.

        Raises:
            UnsupportedError: If its settings have no closed form.
        """
        self._optimizer = optimizer

    def marks(self, decay: float | None) -> tuple[str, ...]:
        """Returns the names of the marks that rows need.

        Args:
            decay: Weight decay of their table; None: it has none.
        """
        names = [moment.STEP]
        if decay or self.needs_elapsed:
            names.append(moment.ELAPSED)
        if self.has_potential:
            names.append(moment.POTENTIAL)
        return tuple(names)

    def moves_table(self, decay: float | None) -> bool:
        """Returns whether such a step changes the table, not just its slots.

        Args:
            decay: As for `marks`.
        """
        del decay
        return True

    def rate_limit(
        self, decay: float | None, *, is_scheduled: bool
    ) -> float | None:
        """Returns the learning rate below which the closed form holds.

        Args:
            decay: As for `marks`.
            is_scheduled: Whether a schedule changes the learning rate.

        Returns:
            None: there is no limit.
        """
        del is_scheduled
        # A step at this rate takes weights to zero, which has no logarithm.
        return 1 / decay if decay else None

    def require_closed_form(
        self, largest_rate: float, decay: float | None, *, is_scheduled: bool
    ) -> None:
        """Refuses a learning rate that is known before the first step.

        Args:
            largest_rate: The learning rate; the largest, if there are several.
            decay: As for `marks`.
            is_scheduled: As for `rate_limit`.

        Raises:
            UnsupportedError: If there is no closed form for it.
        """
        limit = self.rate_limit(decay, is_scheduled=is_scheduled)
        if limit is not None and not largest_rate < limit:
            raise no_closed_form(
                self._optimizer,
                f"a learning rate of {largest_rate:.6g} with weight_decay="
                f"{decay!r}",
                f"a learning rate below {limit:.6g} with this weight decay, "
                "or a smaller weight decay",
            )

    def within_limit(
        self,
        value: tf.Tensor,
        rate: tf.Tensor,
        decay: float | None,
        *,
        is_scheduled: bool,
    ) -> tf.Tensor:
        """Returns a value, with a check that its rate has a closed form.

        Args:
            value: A tensor computed with the rate.
            rate: The learning rate, a float64 scalar; known when a step runs.
            decay: As for `marks`.
            is_scheduled: As for `rate_limit`.
        """
        limit = self.rate_limit(decay, is_scheduled=is_scheduled)
        if limit is None:
            return value
        optimizer = self._optimizer
        text = (
            "sparse_update='caught_up' has no closed form for the learning "
            f"rate that {type(optimizer).__name__} ({optimizer.name!r}) has "
            f"now. Expected: a learning rate below {limit:.6g} with "
            f"weight_decay={decay!r}. Use a smaller one, or sparse_update="
            "'exact' or 'lazy'. Received: learning_rate ="
        )
        return graph_checks.gated(value, rate < limit, [text, rate])

    @abc.abstractmethod
    def slot_lists(self) -> dict[str, Any]:
        """Returns lists of slots that change, with an entry per variable."""

    def table(self, values: Mapping[str, tf.Tensor], gap: Gap) -> tf.Tensor:
        """Returns rows of the table after the steps of a gap.

        By itself only weight decay changes them.

        Args:
            values: Rows of the table (`TABLE`) and of its slots, by the keys
                of `slot_lists`, shape `(U, D)`, as of their last update. Rows
                may be read on demand.
            gap: The steps, in the dtype of the values.
        """
        return gap.shrunk(values[TABLE])

    def slot(self, key: str, value: tf.Tensor, gap: Gap) -> tf.Tensor:
        """Returns rows of a slot after the steps of a gap: by itself, the same.

        Args:
            key: Key of the slot, as in `slot_lists`.
            value: Its rows as of their last update, shape `(U, D)`.
            gap: The steps, in the dtype of the value.
        """
        del key, gap
        return value

    def after(
        self, key: str, values: Mapping[str, tf.Tensor], gap: Gap
    ) -> tf.Tensor:
        """Returns rows of the table or of a slot after the steps of a gap.

        Args:
            key: `TABLE`, or the key of a slot.
            values: As for `table`.
            gap: As for `table`.
        """
        if key == TABLE:
            return self.table(values, gap)
        return self.slot(key, values[key], gap)

    def potential(
        self,
        step: tf.Tensor,
        rate: tf.Tensor,
        decay: float | None,
        rates: Schedule | None = None,
        largest_rate: float = 0.0,
    ) -> tf.Tensor:
        """Returns the potential after a step, a float64 scalar.

        Args:
            step: Number of steps done, a float64 scalar.
            rate: Learning rate of the latest step, a float64 scalar.
            decay: The weight decay; None: there is none.
            rates: Gives the learning rates of later steps; None: all equal
                that of the latest step.
            largest_rate: The largest of them, as far as known.
        """
        raise NotImplementedError  # where `has_potential` is False


def no_closed_form(
    optimizer: Any, received: str, expected: str
) -> errors.UnsupportedError:
    """Returns the error that refuses a setting of an optimizer."""
    return errors.UnsupportedError(
        "sparse_update='caught_up' has no closed form for this setting of "
        f"{type(optimizer).__name__} ({optimizer.name!r}). Expected: "
        f"{expected}. Received: {received}. Use sparse_update='exact' or "
        "'lazy' with it."
    )

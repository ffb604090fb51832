"""States of an optimizer's clock, and the marks of rows."""

import dataclasses

import tensorflow as tf

# Marks of the step that last updated a row.
STEP = "step"
ELAPSED = "elapsed"
POTENTIAL = "potential"


@dataclasses.dataclass(frozen=True)
class Moment:
    """The state of an optimizer's clock after some step.

    Attributes:
        numbers: The marks of that step, followed by its learning rate and by
            the optimizer's own number of it; shape `(M + 2,)`, float64. They
            are one tensor because they are sent to the ps together.
        names: Names of the marks, in order. `STEP`, the number of steps that
            the clock has counted, comes first. `ELAPSED` is the elapsed
            learning rate and `POTENTIAL` the potential, see `gap.Gap`.
    """

    numbers: tf.Tensor
    names: tuple[str, ...]

    @property
    def marks(self) -> tf.Tensor:
        """Marks of the rows that are updated in that step, shape `(M,)`."""
        return self.numbers[: len(self.names)]

    def mark(self, name: str) -> tf.Tensor:
        """Returns one of the marks, a scalar."""
        return self.numbers[self.names.index(name)]

    @property
    def rate(self) -> tf.Tensor:
        """Learning rate of the step."""
        return self.numbers[len(self.names)]

    @property
    def iterations(self) -> tf.Tensor:
        """Number of the optimizer's steps, including those before the clock."""
        return self.numbers[len(self.names) + 1]

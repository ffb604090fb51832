"""States of an optimizer's clock, and what rows remember of them."""

import dataclasses

import tensorflow as tf

# What a row may have to remember of the step that last updated it.
STEP = "step"
ELAPSED = "elapsed"
POTENTIAL = "potential"


@dataclasses.dataclass(frozen=True)
class Moment:
    """The state of an optimizer's clock after some step.

    Attributes:
        numbers: The marks of that step, followed by its learning rate and by
            the optimizer's own number of it; shape `(M + 2,)`, float64. They
            are one tensor, as they cross from worker to ps together.
        names: Of the marks, in their order: `STEP`, the number of steps that
            the clock has counted, comes first; `ELAPSED` is the elapsed
            learning rate and `POTENTIAL` that of the step, see `gap.Gap`.
    """

    numbers: tf.Tensor
    names: tuple[str, ...]

    @property
    def marks(self) -> tf.Tensor:
        """What rows that are updated in that step remember, shape `(M,)`."""
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
        """Steps that the optimizer has done, those before the clock too."""
        return self.numbers[len(self.names) + 1]

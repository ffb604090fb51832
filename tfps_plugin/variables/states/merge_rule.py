"""Rules to merge copies of one state into one value. Pure: no TensorFlow."""

import enum

import numpy as np


class MergeRule(enum.Enum):
    """A way to merge the lanes' copies of a state.

    For booleans, SUM and MAX mean "any", and MIN means "all".

    Attributes:
        SUM: The sum of the chief's own value and all copies.
        MAX: The largest of them, element by element.
        MIN: The smallest of them, element by element.
        MEAN: The mean of the copies that were assigned.
        FIRST: The copy of the first lane that assigned it.
        LAST: A copy with the result of a lane's latest batch. If lanes run in
            parallel, it is not defined which batch is the latest of all.
            Copies of one lane belong to one batch.
        CONSTANT: The chief's own value, which no step assigns.
    """

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"
    FIRST = "first"
    LAST = "last"
    CONSTANT = "constant"

    @property
    def reduces(self) -> bool:
        """True if copies begin at a neutral element, and all of them count."""
        return self in (MergeRule.SUM, MergeRule.MAX, MergeRule.MIN)

    def neutral(self, dtype: np.dtype) -> np.ndarray:
        """Returns the value that changes nothing when combined with another.

        Returns:
            A scalar of that dtype.
        """
        if self is MergeRule.SUM:
            return np.zeros([], dtype)
        is_max = self is MergeRule.MAX
        if dtype.kind == "b":
            return np.asarray(not is_max)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return np.asarray(limits.min if is_max else limits.max, dtype)
        # This works for dtypes that NumPy does not know, too, such as bfloat16.
        return np.asarray(-np.inf if is_max else np.inf).astype(dtype)

    def combine(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Combines two values.

        Args:
            first: A value of the state, or several of them in one array.
            second: An array of the same shape and dtype.

        Returns:
            An array of the same shape and dtype.
        """
        result: np.ndarray
        if self is MergeRule.SUM:
            result = first + second
        elif self is MergeRule.MAX:
            result = np.maximum(first, second)
        else:
            result = np.minimum(first, second)
        return result

"""What answers are worth."""

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]


def rmse(answers: _Floats, labels: _Floats) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((answers.ravel() - labels) ** 2)))


def auc(answers: _Floats, labels: _Floats) -> float:
    """Area under the curve: how often a one is ranked before a zero."""
    answers, positive = answers.ravel(), labels > 0.5
    _, places, counts = np.unique(
        answers, return_inverse=True, return_counts=True
    )
    # Those that are equal share the mean of their ranks.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    ones = int(positive.sum())
    zeros = len(labels) - ones
    above = ranks[positive].sum() - ones * (ones + 1) / 2
    return float(above / (ones * zeros))


def recall(
    scores: _Floats, seen: npt.NDArray[np.bool_], wanted: npt.NDArray[np.bool_]
) -> float:
    """Part of what each wanted that is among the first 20, averaged.

    Args:
        scores: Of shape `(users, items)`.
        seen: Whether an item is left out; same shape.
        wanted: Whether it ought to be found; same shape.
    """
    scores = np.where(seen, -np.inf, scores)
    first = np.argpartition(-scores, 20, axis=1)[:, :20]
    hits = np.take_along_axis(wanted, first, axis=1).sum(axis=1)
    number = wanted.sum(axis=1)
    asks = number > 0
    return float(np.mean(hits[asks] / number[asks]))

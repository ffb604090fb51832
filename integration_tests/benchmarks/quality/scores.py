"""Scores of answers."""

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float32]


def rmse(answers: _Floats, labels: _Floats) -> float:
    """Returns the root of the mean squared error."""
    return float(np.sqrt(np.mean((answers.ravel() - labels) ** 2)))


def auc(answers: _Floats, labels: _Floats) -> float:
    """Returns the area under the ROC curve."""
    answers, positive = answers.ravel(), labels > 0.5
    _, places, counts = np.unique(
        answers, return_inverse=True, return_counts=True
    )
    # Equal answers share the mean of their ranks.
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    ones = int(positive.sum())
    zeros = len(labels) - ones
    above = ranks[positive].sum() - ones * (ones + 1) / 2
    return float(above / (ones * zeros))


def recall(
    scores: _Floats, seen: npt.NDArray[np.bool_], wanted: npt.NDArray[np.bool_]
) -> float:
    """Returns the mean share of wanted items among each user's first 20.

    Args:
        scores: Scores of shape `(users, items)`.
        seen: Whether to leave out an item; same shape.
        wanted: Whether an item should be found; same shape.
    """
    scores = np.where(seen, -np.inf, scores)
    first = np.argpartition(-scores, 20, axis=1)[:, :20]
    hits = np.take_along_axis(wanted, first, axis=1).sum(axis=1)
    number = wanted.sum(axis=1)
    asks = number > 0
    return float(np.mean(hits[asks] / number[asks]))

"""Report of a run: its scores, its curves, and the variables of each ps."""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd

Curves = dict[str, list[float]]
"""Metric name -> its value after each epoch, as Keras's `History` has it."""

SCORES_FILE = "scores.json"

_CERTAIN = 1e-7


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of a prediction, and the cost of the training.

    Attributes:
        auc: Probability that a late flight is ranked above one on time.
        log_loss: Mean cross-entropy, in nats.
        seconds: Duration of the training.
        curves: Curves of the training.
    """

    auc: float
    log_loss: float
    seconds: float = 0.0
    curves: Curves = dataclasses.field(default_factory=dict)

    def save(self, path: pathlib.Path) -> None:
        """Writes them as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2))

    @classmethod
    def load(cls, path: pathlib.Path) -> "Scores":
        """Reads a file of `save`."""
        return cls(**json.loads(path.read_text()))


def score(
    late: npt.ArrayLike,
    predicted: npt.ArrayLike,
    seconds: float = 0.0,
    curves: Curves | None = None,
) -> Scores:
    """Compares predicted probabilities with the labels."""
    truth = np.asarray(late, np.float64)
    probability = np.asarray(predicted, np.float64)
    return Scores(
        area_under_curve(truth, probability),
        log_loss(truth, probability),
        seconds,
        curves or {},
    )


def area_under_curve(
    truth: npt.NDArray[np.float64], probability: npt.NDArray[np.float64]
) -> float:
    """Returns the exact area under the ROC curve; NaN with only one class.

    This is the share of pairs of a late flight and one on time in which the
    late one is ranked higher: the Mann-Whitney U, where ties count half.
    """
    positives = truth.sum()
    pairs = positives * (len(truth) - positives)
    ranks = pd.Series(probability).rank().to_numpy()
    wins = ranks[truth > 0].sum() - positives * (positives + 1) / 2
    return float(wins / pairs) if pairs else math.nan


def log_loss(
    truth: npt.NDArray[np.float64], probability: npt.NDArray[np.float64]
) -> float:
    """Returns the mean cross-entropy in nats."""
    probability = np.clip(probability, _CERTAIN, 1 - _CERTAIN)
    right = np.where(truth > 0, probability, 1 - probability)
    return float(-np.log(right).mean())


def score_table(scores: Mapping[str, Scores]) -> str:
    """Returns the scores of several predictions as a plain-text table."""
    lines = [f"{'':24}{'test AUC':>10}{'log loss':>10}{'training':>10}"]
    for name, one in scores.items():
        seconds = f"{one.seconds:.0f} s" if one.seconds else "-"
        lines.append(
            f"{name:24}{one.auc:>10.4f}{one.log_loss:>10.4f}{seconds:>10}"
        )
    return "\n".join(lines)


def holdings_table(variables: Iterable[Any]) -> str:
    """Returns a table of the variables and bytes that each task holds.

    Args:
        variables: Keras variables. A sharded one counts once on each task that
            has a shard of it.
    """
    counts: collections.Counter[str] = collections.Counter()
    sizes: collections.Counter[str] = collections.Counter()
    for variable in variables:
        for piece in getattr(variable.value, "variables", [variable.value]):
            task = _task(piece.device)
            counts[task] += 1
            sizes[task] += math.prod(piece.shape) * piece.dtype.size
    lines = [f"{'':24}{'variables':>10}{'bytes':>12}"]
    for task in sorted(counts):
        lines.append(f"{task:24}{counts[task]:>10}{sizes[task]:>12,}")
    return "\n".join(lines)


def _task(device: str) -> str:
    """Returns a task's name in words: job ps, task 1 is "ps 1"."""
    fields = dict(
        field.split(":", 1) for field in device.split("/") if ":" in field
    )
    return f"{fields.get('job', 'this process')} {fields.get('task', '')}"


def say(text: str) -> None:
    """Prints at once, even if a launcher reads the output."""
    print(text, flush=True)


def draw_curves(runs: Mapping[str, Curves], path: pathlib.Path) -> None:
    """Draws loss and AUC by epoch, of training and validation, as a PNG."""
    # This backend needs no screen. Set it before pyplot looks for one.
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for axes, metric, title in zip(
        all_axes, ("loss", "auc"), ("log loss", "AUC"), strict=True
    ):
        for number, (name, curves) in enumerate(runs.items()):
            for key, style in ((metric, "--"), (f"val_{metric}", "-")):
                part = "validation" if key.startswith("val_") else "training"
                values: Sequence[float] = curves.get(key, [])
                axes.plot(
                    range(1, len(values) + 1),
                    values,
                    style,
                    color=f"C{number}",
                    marker="o",
                    label=f"{name}, {part}",
                )
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
    all_axes[0].legend()
    figure.suptitle("Will a flight from New York arrive late?")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

"""Recent losses, derived from the "loss" that steps report."""

import math
import threading
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable

# Between the mean that a step returned and the mean of a metric's states.
_RELATIVE_TOLERANCE = 1e-4
# After so many reports that match no metric, the search ends.
_MOST_UNMATCHED = 8


class CountedLoss(NamedTuple):
    """A lane's counts in the states of one metric.

    Attributes:
        copies: The lane's copies of the states; replaced when the metric is
            reset or the worker comes back.
        total: The sum of losses.
        weight: Their number, or their total weight.
    """

    copies: Any
    total: float
    weight: float


class LossReports:
    """Determines the losses since the last report of the same lane.

    Most steps report the mean of a metric over all steps of their lane since
    it was reset. A user's own step may report the loss of its batch instead.
    The states of the metric tell: if the reported number is their mean, the
    losses since the last report follow exactly.

    Threading: lanes call `since_last`; no lane runs during `begin_epoch`.
    Guarded by `_lock`: everything that changes.
    """

    def __init__(
        self,
        model: keras.Model,
        read: Callable[[Any, int], CountedLoss | None] | None = None,
    ) -> None:
        """Starts without reports.

        Args:
            model: The model; its metrics may be created later.
            read: Reads a lane's counts in a metric; returns None if there are
                none.
        """
        self._model = model
        self._read = _counted_by if read is None else read
        self._lock = threading.Lock()
        # Metrics that the reports may come from; None: not searched yet.
        self._candidates: Sequence[Any] | None = None
        self._num_unmatched = 0.0
        self._last: dict[int, CountedLoss] = {}

    def begin_epoch(self) -> None:
        """Records that metrics were reset."""
        with self._lock:
            self._last.clear()

    def since_last(self, lane_index: int, loss: float) -> float:
        """Returns the mean loss since the last report.

        Args:
            lane_index: The reporting lane, which waits for the result.
            loss: Result of its last step.

        Returns:
            The mean of the losses that its metric has counted since; `loss`
            itself if it matches no metric, or a metric that was reset since.
        """
        with self._lock:
            if self._candidates is None:
                self._candidates = _means_of(self._model)
            candidates = self._candidates
        for metric in candidates:
            # Does not hold the lock: reading may take a message.
            counted = self._read(metric, lane_index)
            if counted is not None and _is_mean_of(counted, loss):
                with self._lock:
                    self._candidates = [metric]
                    self._num_unmatched = -math.inf
                    before = self._last.get(lane_index)
                    self._last[lane_index] = counted
                return _mean_between(before, counted, loss)
        with self._lock:
            self._last.pop(lane_index, None)
            self._num_unmatched += 1
            if self._num_unmatched >= _MOST_UNMATCHED:
                self._candidates = []
        return loss


def _is_mean_of(counted: CountedLoss, loss: float) -> bool:
    return counted.weight > 0 and math.isclose(
        counted.total / counted.weight, loss, rel_tol=_RELATIVE_TOLERANCE
    )


def _mean_between(
    before: CountedLoss | None, now: CountedLoss, loss: float
) -> float:
    if (
        before is None
        or before.weight >= now.weight
        or any(
            one is not other
            for one, other in zip(before.copies, now.copies, strict=True)
        )
    ):
        return loss
    return (now.total - before.total) / (now.weight - before.weight)


def _means_of(model: keras.Model) -> list[Any]:
    """Returns the metrics that are means, those named "loss" first."""
    means = [m for m in model.metrics if isinstance(m, keras.metrics.Mean)]
    return sorted(means, key=lambda metric: metric.name != "loss")


def _counted_by(metric: Any, lane_index: int) -> CountedLoss | None:
    """Reads a lane's counts in one message; called by the lane."""
    copies = []
    for name in ("total", "count"):
        # A user's own metric may have other attributes.
        variable = getattr(getattr(metric, name, None), "value", None)
        if not isinstance(variable, WorkerLocalVariable) or (
            variable.shape.rank != 0
        ):
            return None
        copy = variable.copies_by_lane().get(lane_index)
        if copy is None:
            return None
        copies.append(copy)
    with compat.clear_device(), tf.device(copies[0].device):
        counts = tf.stack(
            [
                tf.cast(
                    tf.raw_ops.ReadVariableOp(
                        resource=copy.own_handle, dtype=copy.dtype
                    ),
                    tf.float64,
                )
                for copy in copies
            ]
        )
    total, weight = worker_fetches.array(counts)
    return CountedLoss(tuple(copies), float(total), float(weight))

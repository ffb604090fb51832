"""Predictions of the workers, in the order of the input."""

import collections
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.training.steps.metrics import step_states
from tfps_plugin.training.steps.traced.eager_mode import runs_eagerly
from tfps_plugin.training.steps.traced.predict_functions import PredictFunction
from tfps_plugin.training.steps.traced.predict_functions import PredictFunctions
from tfps_plugin.variables.chief import worker_fetches

# Each lane runs one closure, and another waits for it.
_CLOSURES_IN_FLIGHT_PER_LANE = 2


class PendingPrediction:
    """The predictions of one batch, which a worker may still be making."""

    def __init__(
        self, group: RemoteValue, place: int, codec: BatchCodec
    ) -> None:
        """Refers to a batch of a group.

        Args:
            group: The predictions of a group of batches, as strings.
            place: Index of the batch in the group.
            codec: Codec of the predictions of one batch.
        """
        self._group = group
        self._place = place
        self._codec = codec

    def get(self) -> Any:
        """Waits for the predictions.

        Returns:
            A nested structure of tensors, on the chief.

        Raises:
            BaseException: The error that the step raised.
        """
        rows: np.ndarray = self._group.get()
        with tf.device("/device:CPU:0"):
            return self._codec.decode(tf.constant(rows[self._place]))


class PredictInput:
    """Input of `predict`: batches go to the workers ahead of Keras's loop.

    `next` returns the pending predictions of the next batch, in the order of
    the input.

    Threading: only the thread that runs `predict` uses it.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: Callable[[], PredictFunctions],
        batches: Iterator[tf.Tensor],
        codec: BatchCodec,
        *,
        num_batches: int | None,
        steps_per_closure: Callable[[int], int],
    ) -> None:
        """Prepares the input; reads nothing yet.

        Args:
            coordinator: Runs the closures.
            functions: Returns the model's functions when the first batch is
                requested.
            batches: The batches to predict, as strings of shape `(C,)`.
            codec: Codec of the batches.
            num_batches: Largest number of batches; None: all.
            steps_per_closure: Returns the number of batches to pack. Takes the
                number of batches sent so far.
        """
        self._coordinator = coordinator
        self._functions = functions
        self._batches = batches
        self._codec = codec
        self._num_left = num_batches
        self._steps_per_closure = steps_per_closure
        self._num_sent = 0
        self._pending: collections.deque[PendingPrediction] = (
            collections.deque()
        )
        self._in_flight: collections.deque[RemoteValue] = collections.deque()

    def __iter__(self) -> "PredictInput":
        return self

    def has_next(self) -> bool:
        """Returns whether there is another batch; sends it and others ahead."""
        self._coordinator.safe_points.reach_between_steps()
        # Known, unless variables have other parameter servers now.
        self._send_ahead(self._functions().on_group(self._codec))
        return bool(self._pending)

    def __next__(self) -> PendingPrediction:
        """Returns the predictions of the next batch; sends others ahead."""
        if not self.has_next():
            raise StopIteration
        return self._pending.popleft()

    def _send_ahead(self, function: PredictFunction) -> None:
        most = _CLOSURES_IN_FLIGHT_PER_LANE * self._coordinator.num_lanes
        if self._functions().states.in_order:
            most = 1
        while self._in_flight and self._in_flight[0].is_ready():
            self._in_flight.popleft()
        while len(self._in_flight) < most:
            count = self._steps_per_closure(self._num_sent)
            if len(self._pending) > most * count:
                return  # Keras is slower than the workers
            if self._num_left is not None:
                count = min(count, self._num_left)
            read = list(itertools.islice(self._batches, count))
            if not read:
                self._num_left = 0
                return
            self._num_sent += len(read)
            if self._num_left is not None:
                self._num_left -= len(read)
            group = self._send(function, tf.stack(read))
            self._in_flight.append(group)
            self._pending += [
                PendingPrediction(group, place, function.codec)
                for place in range(len(read))
            ]

    def _send(
        self, function: PredictFunction, group_KC: tf.Tensor
    ) -> RemoteValue:
        runs = itertools.count()

        # The lane fetches results: a worker that dies later loses nothing.
        def predict() -> np.ndarray:
            if next(runs) and self._functions().states.in_order:
                raise step_states.lost_place()
            rows = worker_fetches.array(function.call(group_KC))
            self._coordinator.counters.increment("batches_predicted", len(rows))
            return rows

        return self._coordinator.schedule(predict)

    def close(self) -> None:
        """Waits for what was sent and nobody wants any more."""
        if self._in_flight:
            self._in_flight.clear()
            self._coordinator.join()


class PredictDispatcher:
    """The `model.predict_function` of models on the cluster.

    Batches that do not come from our epoch iterator, such as that of
    `predict_on_batch`, go to Keras's own function, which runs on the chief.

    Attributes:
        functions: The functions that workers run.
        runs_eagerly: Whether Keras's own function was made to run eagerly.

    Threading: only the thread that runs `predict` uses it.
    """

    def __init__(
        self, model: keras.Model, keras_function: Callable[[Any], Any]
    ) -> None:
        """Creates the dispatcher; traces nothing yet.

        Args:
            model: The model.
            keras_function: Keras's own function of a list of batches.
        """
        self.runs_eagerly = runs_eagerly(model)
        self.functions = PredictFunctions(
            model, ClusterCoordinator(model.distribute_strategy)
        )
        self._keras_function = keras_function

    def __call__(self, data: list[Any]) -> Any:
        """Returns the predictions of some batches.

        Args:
            data: The values from the epoch iterator's input.
        """
        if not isinstance(data[0], PendingPrediction):
            return self._keras_function(data)
        return keras_compat.concatenated([pending.get() for pending in data])

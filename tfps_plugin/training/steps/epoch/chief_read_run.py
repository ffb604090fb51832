"""Steps on batches that the chief reads and sends to the workers."""

import itertools
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator

import tensorflow as tf

from tfps_plugin.coordinator.closures.remote_value import RemoteValue
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.batch_codec import BatchCodec
from tfps_plugin.training.steps.epoch.step_account import Claim
from tfps_plugin.training.steps.epoch.step_run import StepRun
from tfps_plugin.training.steps.metrics import counted_sums
from tfps_plugin.training.steps.metrics import step_states
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.steps.tuning import packing


class ChiefReadRun(StepRun):
    """Closures that carry their own batches, and run on any worker.

    Batches are read in the order of the dataset, when Keras asks for them.
    Each trains once, or again if its worker is lost. The counts of a call are
    added when it has ended.

    Threading: see `StepRun`. Guarded by `_lock`: the counts.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
        *,
        codec: BatchCodec,
        batches: Iterator[tf.Tensor],
        steps_per_closure: Callable[[int, int], int],
    ) -> None:
        """Begins an epoch.

        Args:
            coordinator: Runs the closures.
            functions: The model's step.
            progress: Receives the results of steps.
            codec: Codec of the batches.
            batches: The batches, as strings of shape `(C,)`.
            steps_per_closure: Returns the number of steps to pack. Takes the
                number of steps requested so far, and the number that makes a
                call long enough.
        """
        # Evaluation keeps the default number of calls.
        self.tries_calls_in_flight = not functions.counts_exactly
        super().__init__(coordinator, functions, progress)
        self._codec = codec
        self._function = functions.on_group(codec)
        functions.states.announce_order()
        self._batches = batches
        self._steps_per_closure = steps_per_closure
        self._held: list[tf.Tensor] = []
        self._in_flight: list[RemoteValue] = []
        self._lock = threading.Lock()
        self._counted: Counted = {}

    def request(self, num_steps: int) -> None:
        self._is_synced = False
        read = list(itertools.islice(self._batches, num_steps))
        if len(read) < num_steps:
            self._fell_short = True
        if not read:
            raise StopIteration
        self._held += read
        self._account.ask(len(read))
        if len(self._held) >= self._limit():
            self._dispatch()
            self._wait_until(self._is_little_in_flight)
        self._progress.update()

    def _limit(self) -> int:
        """Returns the number of steps of a closure."""
        # Limited because the chief holds the batches of all calls in flight.
        most = min(self._pace.most_steps, packing.MOST_STEPS_AT_FIRST)
        return self._whole_rounds(self._steps_per_closure(self.asked, most))

    def _dispatch(self) -> None:
        if self._functions.choose_updates():
            self._function = self._functions.on_group(self._codec)
        group_KC, self._held = tf.stack(self._held), []
        claim = self._account.claim(group_KC.shape[0])
        self._in_flight.append(
            self._schedule(lambda: self._run(group_KC, claim))
        )

    def _is_little_in_flight(self) -> bool:
        self._in_flight = [v for v in self._in_flight if not v.is_ready()]
        most = self._most_closures_in_flight
        if self._functions.states.in_order:
            most = 1
        return len(self._in_flight) < most

    def _settle(self) -> None:
        if self._held:
            self._dispatch()
        self._in_flight.clear()

    def close(self) -> None:
        """See `StepRun`; these closures never wait."""
        super().close()
        self._held.clear()

    def _trace_again(self) -> None:
        self._function = self._functions.on_group(self._codec)

    # Called by closures.

    def _run(self, group_KC: tf.Tensor, claim: Claim) -> None:
        if not claim.is_open:
            return  # this run was presumed lost
        # Before its steps count as begun.
        self._functions.require_workers()
        if claim.was_begun:
            if (
                self._functions.states.in_order
                and self._functions.counts_exactly
            ):
                raise step_states.lost_place()
            self._begins_again(claim.num_steps)
        claim.was_begun = True
        begun_at = time.monotonic()
        result = self._function(group_KC)
        counted = counted_sums.fetch(result.counted)
        ended_at = time.monotonic()
        self._pace.observe(claim.num_steps, ended_at - begun_at)
        # The chief reads the input.
        self._rate(claim.num_steps, begun_at, ended_at, 0.0)
        reported = self._progress.report(result.outputs)
        with self._lock:
            if self._account.settle(claim, claim.num_steps):
                self._coordinator.counters.increment(
                    "steps_done", claim.num_steps
                )
                self._counted = counted_sums.add(self._counted, counted)
        if self.tries_calls_in_flight:
            self._observe(claim.num_steps, self._limit(), ended_at, reported)

    def _take_counted(self) -> Counted:
        with self._lock:
            counted, self._counted = self._counted, {}
        return counted

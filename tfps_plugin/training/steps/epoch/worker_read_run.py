"""Steps on input that the workers read themselves."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from tfps_plugin import errors
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.members.pinned_workers import WorkerAwayError
from tfps_plugin.inputs.split_reader import Share
from tfps_plugin.inputs.split_reader import SplitReader
from tfps_plugin.training.local import lengths
from tfps_plugin.training.steps.epoch.step_account import Claim
from tfps_plugin.training.steps.epoch.step_run import StepRun
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.metrics.split_counts import SplitCounts
from tfps_plugin.training.steps.traced.step_calls import StepCalls
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.steps.tuning import packing

_logger = logging.getLogger("tfps_plugin.training")


class WorkerReadRun(StepRun):
    """Closures that read their input on the worker that runs them.

    If the number of steps is known, exactly the steps run that Keras has
    requested. If it is unknown, workers run ahead by as many steps as may be
    in flight, and Keras is told of the steps that have run.

    The counts of calls (`CountedSums`) are added when the calls have ended. If
    an epoch is the whole input, they are added when their split is read to its
    end, because the split of a lost worker is read again.

    Threading: see `StepRun`. Guarded by `_lock`: the counts.
    """

    tries_calls_in_flight = True

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        functions: StepFunctions,
        progress: ProgressLogs,
        *,
        reader: SplitReader,
        renew: Callable[[], SplitReader],
        take_in_workers: Callable[[], None],
        element_spec: Any,
        num_steps: int | None,
        steps_per_closure: Callable[[int, int], int],
    ) -> None:
        """Begins an epoch.

        Args:
            coordinator: Runs the closures.
            functions: The model's step.
            progress: Receives the results of steps.
            reader: Gives closures their input.
            renew: Makes a new reader that starts over; used if `reader` was
                already at its end when the epoch began, as Keras does with a
                dataset that is exactly as long as an epoch.
            take_in_workers: Gives workers that were added something to read.
            element_spec: The type of a batch.
            num_steps: Steps of the epoch; None: the whole input.
            steps_per_closure: Returns the number of steps to pack. Takes the
                number of steps that ran so far, and the number that makes a
                call long enough.
        """
        super().__init__(coordinator, functions, progress)
        self._reader = reader
        self._renew: Callable[[], SplitReader] | None = renew
        self._take_in_workers = take_in_workers
        self._element_spec = element_spec
        self._calls = StepCalls(functions, element_spec)
        functions.states.require_any_order()
        self._num_steps = num_steps
        self._steps_per_closure = steps_per_closure
        self._num_told = 0
        self._tokens: set[_Token] = set()
        self._lock = threading.Lock()
        # If Keras requests a number of steps, all their counts are added,
        # whatever they read.
        self._counts = SplitCounts(rereads=reader.rereads and num_steps is None)

    def request(self, num_steps: int) -> None:
        self._is_synced = False
        self._take_in_workers()
        if self._num_steps is None:
            is_first = not self._num_told
            self._num_told += num_steps
            if is_first and not self.has_more(0):
                self._fell_short = True
                raise StopIteration
        else:
            if self._is_over():
                self._fell_short = True
                raise StopIteration
            self._account.ask(num_steps)
            self._wait_until(
                lambda: self._is_little_in_flight() or self._is_over(),
                self._pump,
            )
        self._progress.update()

    def has_more(self, num_yielded: int) -> bool:
        """Waits until another step has run, or none will.

        Args:
            num_yielded: Number of steps that Keras was told of.

        Returns:
            Whether more than `num_yielded` steps have run.
        """
        self.reach_safe_point()
        self._is_synced = False
        self._wait_until(
            lambda: self.done > num_yielded or self._is_over(),
            lambda: self._run_ahead(num_yielded),
        )
        return self.done > num_yielded

    def _run_ahead(self, num_yielded: int) -> None:
        most = num_yielded + self._limit() * self._most_closures_in_flight
        if most > self.asked:
            self._account.ask(most - self.asked)
        self._pump()

    def _is_little_in_flight(self) -> bool:
        return (
            self.asked - self.done
            <= self._limit() * self._most_closures_in_flight
        )

    def _is_over(self) -> bool:
        """Returns whether the input has ended, or the run was closed."""
        if self._is_closed or not self._reader.is_over:
            return self._is_closed
        if self._renew is None or self.done:
            return True
        self._reader = self._renew()
        self._renew = None
        return False

    def _limit(self) -> int:
        """Returns the number of steps of a closure."""
        return self._whole_rounds(
            self._steps_per_closure(self.done, self._pace.most_steps)
        )

    def _limit_of_a_call(self) -> int:
        """Returns the steps of a call of the calling closure's worker.

        All, except near the end of an epoch, and on a slow worker.
        """
        most = limit = self._limit()
        if self._num_steps is not None:
            most = packing.steps_near_the_end(
                self._num_steps - self._account.claimed,
                self._coordinator.num_lanes,
                limit,
            )
        most = packing.steps_of_a_slow_worker(
            most, self._coordinator.relative_speed(self._kind)
        )
        if most == limit:
            return limit
        # A number that the user has set takes precedence.
        return self._whole_rounds(self._steps_per_closure(self.done, most))

    def _pump(self, *, all_of_it: bool = False) -> None:
        """Schedules closures for steps that no other closure will claim.

        Args:
            all_of_it: Whether to schedule an incomplete closure, too.
        """
        if self._is_over():
            return
        limit = self._limit()
        if not all_of_it:
            if self._functions.choose_updates():
                self._calls = StepCalls(self._functions, self._element_spec)
            self._calls.grow(limit)
        self._tokens = {t for t in self._tokens if not t.has_ended}
        # Closures that wait for a split claim nothing until they get one.
        idle = sum(not t.has_claimed for t in self._tokens)
        covered = max(0, idle - self._reader.num_waiting) * limit
        missing = (self._account.unclaimed - covered) / limit
        count = math.ceil(missing) if all_of_it else math.floor(missing)
        most = self._most_closures_in_flight + self._reader.num_waiting
        for _ in range(min(count, most - len(self._tokens))):
            token = _Token(self, limit)
            self._tokens.add(token)
            self._schedule(token).on_ended(token.end)

    def _settle(self) -> None:
        if self._num_steps is None:
            self._account.withdraw_unclaimed()
        self._wait_until(
            lambda: self.asked == self.done or self._is_over(),
            lambda: self._pump(all_of_it=True),
        )
        if self._account.withdraw_unclaimed():
            self._fell_short = True
        # Closures that wait for a split learn that they need none.
        self._reader.wake()

    def finish(self) -> None:
        """See `StepRun`; includes splits that were not read to their end."""
        super().finish()
        with self._lock:
            unfinished = self._counts.take(unfinished=True)
        self._functions.commit(unfinished)

    def close(self) -> None:
        super().close()
        self._reader.close()

    def _trace_again(self) -> None:
        self._calls = StepCalls(self._functions, self._element_spec)

    # Called by closures.

    def _run(self, token: "_Token", limit: int) -> None:
        """Runs up to `limit` steps, on one split after another."""
        # Before it claims any.
        self._functions.require_workers()
        left = limit
        # It is not replaced while this runs: some splits are unread.
        reader = self._reader
        while left > 0:
            # It may have to wait for a split of a worker that leaves.
            self._functions.release_workers()
            with reader.reading(lambda: self._account.unclaimed > 0) as share:
                if share is None:
                    return
                if share.is_infinite and self._num_steps is None:
                    raise endless()
                try:
                    self._functions.require_workers()
                except WorkerAwayError:
                    return  # with nothing claimed: another closure goes on
                claim = self._account.claim(min(left, self._limit_of_a_call()))
                token.claim = claim
                if not claim.num_steps:
                    return
                done = self._run_on(share, claim)
                if done is None:
                    return
                # A round ends with its split; the next one begins another.
                left = lengths.at_most(left - done, self._functions.local_steps)

    def _run_on(self, share: Share, claim: Claim) -> int | None:
        """Runs claimed steps; returns None if they were presumed lost."""
        begun_at = time.monotonic()
        try:
            made = self._calls.make(share, claim.num_steps)
        except BaseException:
            # If the closure runs again, these steps count as begun again: some
            # may have been applied before one of them failed.
            claim.was_begun = self._account.settle(claim, 0)
            raise
        done = made.num_steps
        if done < claim.num_steps:
            share.exhausted()
        ended_at = time.monotonic()
        self._pace.observe(done, ended_at - begun_at)
        self._rate(done, begun_at, ended_at, made.input_seconds)
        reported = self._progress.report(made.outputs) if done else None
        with self._lock:
            if not self._account.settle(claim, done):
                return None
            self._coordinator.counters.increment("steps_done", done)
            self._counts.add(share, made.counted)
        self._observe(done, self._limit(), ended_at, reported)
        return done

    def begins_again(self, claim: Claim) -> None:
        """Gives back the steps that an earlier run of a closure has started."""
        if self._account.settle(claim, 0) or claim.was_begun:
            claim.was_begun = False
            self._begins_again(claim.num_steps)

    def share_finished(self, share: Share) -> None:
        """Adds the counts of a finished split; called by the reader."""
        with self._lock:
            self._counts.finish(share)
        if share.is_infinite:
            _logger.warning(
                "The input of worker %d has ended, though it repeats without "
                "end: there is nothing to repeat. Its steps are left to other "
                "workers. Expected: some batches on every worker, which there "
                "are not where there are more workers than files, or where "
                "drop_remainder leaves none. With `splits`, a DatasetCreator "
                "shares files out among any number of workers.",
                share.worker_index,
            )
        self._account.wake()

    def share_lost(self, share: Share) -> None:
        """Drops the counts of a lost split; called by the reader."""
        with self._lock:
            self._counts.lose(share)
        self._account.wake()

    def waiting_began(self) -> None:
        """Checks whether another closure is needed; called by the reader."""
        self._account.wake()

    def _take_counted(self) -> Counted:
        with self._lock:
            return self._counts.take()


class _Token:
    """One closure: runs some of the requested steps.

    If it is called again after its worker was lost, it first gives back the
    steps that it had started.
    """

    def __init__(self, run: WorkerReadRun, limit: int) -> None:
        self._run = run
        self._limit = limit
        self.claim: Claim | None = None
        self.has_ended = False

    @property
    def has_claimed(self) -> bool:
        """True if it has started to run steps."""
        return self.claim is not None

    def end(self) -> None:
        """Records that it has ended, in whatever way."""
        self.has_ended = True

    def __call__(self) -> None:
        """Runs steps; called by a lane."""
        if self.claim is not None:
            self._run.begins_again(self.claim)
            self.claim = None
        self._run._run(self, self._limit)


def endless() -> errors.InputError:
    """Returns the error for an epoch that would never end."""
    return errors.InputError(
        "The input of a worker never ends, so an epoch would not either; "
        "expected one that ends, or the number of steps. Received: "
        "steps=None, a dataset of infinite cardinality. Give fit() "
        "steps_per_epoch, its validation_data validation_steps, evaluate() "
        "steps; or leave repeat() out of the dataset function."
    )

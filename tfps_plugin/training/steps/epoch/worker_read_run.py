"""Steps on input that the workers read themselves."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from tfps_plugin import errors
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.inputs.split_reader import Share
from tfps_plugin.inputs.split_reader import SplitReader
from tfps_plugin.training.steps.epoch.step_account import Claim
from tfps_plugin.training.steps.epoch.step_run import StepRun
from tfps_plugin.training.steps.metrics.counted_sums import Counted
from tfps_plugin.training.steps.metrics.progress_logs import ProgressLogs
from tfps_plugin.training.steps.metrics.split_counts import SplitCounts
from tfps_plugin.training.steps.traced.step_calls import StepCalls
from tfps_plugin.training.steps.traced.step_functions import StepFunctions
from tfps_plugin.training.steps.tuning import packing

_logger = logging.getLogger(__name__)


class WorkerReadRun(StepRun):
    """Closures that find something to read on the worker that runs them.

    With a known number of steps, exactly those run that Keras has asked for.
    With an unknown number, workers run ahead, by as many steps as may be in
    flight, and Keras is told of steps that have run: nobody else knows how
    many there will be.

    What calls have counted (`CountedSums`) is added up once they have ended;
    where an epoch is all of the input, once their split was read to its end,
    because what a lost worker has read of its split is read again.

    Threading: as `StepRun`. Guarded by `_lock`: what was counted.
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
        element_spec: Any,
        num_steps: int | None,
        steps_per_closure: Callable[[int, int], int],
    ) -> None:
        """Begins an epoch.

        Args:
            coordinator: Who runs closures.
            functions: The model's step.
            progress: Is told what steps return.
            reader: Gives closures something to read.
            renew: Makes another, which begins anew; used if `reader` turns
                out to have been at its end before the epoch began, as Keras
                does with a dataset that is exactly as long as an epoch.
            element_spec: What one batch looks like.
            num_steps: Of the epoch; None: what the input has.
            steps_per_closure: How many to pack, of the number of steps that
                ran so far, and of how many make a call that is long enough.
        """
        super().__init__(coordinator, functions, progress)
        self._reader = reader
        self._renew: Callable[[], SplitReader] | None = renew
        self._element_spec = element_spec
        self._calls = StepCalls(functions, element_spec)
        functions.require_any_order()
        self._num_steps = num_steps
        self._steps_per_closure = steps_per_closure
        self._num_told = 0
        self._tokens: set[_Token] = set()
        self._lock = threading.Lock()
        # Asked for so many steps, Keras gets what they have counted, whatever
        # they read.
        self._counts = SplitCounts(rereads=reader.rereads and num_steps is None)

    def request(self, num_steps: int) -> None:
        """See `StepRun`."""
        self._is_synced = False
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
        """Waits until more steps have run than those, or none will.

        Args:
            num_yielded: Steps that Keras was told of.
        """
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
        """Whether the input has come to its end."""
        if self._is_closed or not self._reader.is_over:
            return self._is_closed
        if self._renew is None or self.done:
            return True
        self._reader = self._renew()
        self._renew = None
        return False

    def _limit(self) -> int:
        """How many steps a closure has."""
        return self._steps_per_closure(self.done, self._pace.most_steps)

    def _limit_of_a_call(self) -> int:
        """How many it makes in one go: all, but near the end of an epoch."""
        limit = self._limit()
        if self._num_steps is None:
            return limit
        # Not if somebody has said how many.
        return self._steps_per_closure(
            self.done,
            packing.steps_near_the_end(
                self._num_steps - self._account.claimed,
                self._coordinator.num_lanes,
                limit,
            ),
        )

    def _pump(self, *, all_of_it: bool = False) -> None:
        """Schedules closures for the steps that none will claim otherwise.

        Args:
            all_of_it: Whether to begin what makes no whole closure, too.
        """
        if self._is_over():
            return
        limit = self._limit()
        if not all_of_it:
            if self._functions.choose_updates():
                self._calls = StepCalls(self._functions, self._element_spec)
            self._calls.grow(limit)
        self._tokens = {t for t in self._tokens if not t.has_ended}
        # Those that wait for a split claim nothing before they get one.
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
        # Those that wait for a split see that they need none.
        self._reader.wake()

    def finish(self) -> None:
        """See `StepRun`; of splits, too, that were not read to their end."""
        super().finish()
        with self._lock:
            unfinished = self._counts.take(unfinished=True)
        self._functions.commit(unfinished)

    def close(self) -> None:
        """See `StepRun`."""
        super().close()
        self._reader.close()

    # What closures call.

    def _run(self, token: "_Token", limit: int) -> None:
        """Runs up to that many steps, on one split after the other."""
        left = limit
        # While this runs it is not replaced: its splits are not all read.
        reader = self._reader
        while left > 0:
            with reader.reading(lambda: self._account.unclaimed > 0) as share:
                if share is None:
                    return
                if share.is_infinite and self._num_steps is None:
                    raise _endless()
                claim = self._account.claim(min(left, self._limit_of_a_call()))
                token.claim = claim
                if not claim.num_steps:
                    return
                done = self._run_on(share, claim)
                if done is None:
                    return
                left -= done

    def _run_on(self, share: Share, claim: Claim) -> int | None:
        """Runs claimed steps; None if they were taken for lost meanwhile."""
        begun_at = time.monotonic()
        try:
            made = self._calls.make(share, claim.num_steps)
        except BaseException:
            self._account.settle(claim, 0)
            raise
        done = made.num_steps
        if done < claim.num_steps:
            share.exhausted()
        ended_at = time.monotonic()
        self._pace.observe(done, ended_at - begun_at)
        reported = self._progress.report(made.outputs) if done else None
        with self._lock:
            if not self._account.settle(claim, done):
                return None
            self._coordinator.counters.increment("steps_done", done)
            self._counts.add(share, made.counted)
        self._observe(done, self._limit(), ended_at, reported)
        return done

    def begins_again(self, claim: Claim) -> None:
        """Gives back what an earlier run of a closure has begun."""
        self._begins_again(claim.num_steps)
        self._account.settle(claim, 0)

    def share_finished(self, share: Share) -> None:
        """Counts what was counted of a split; called by the reader."""
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
        """Forgets what will be counted again; called by the reader."""
        with self._lock:
            self._counts.lose(share)
        self._account.wake()

    def waiting_began(self) -> None:
        """Looks whether others need a closure; called by the reader."""
        self._account.wake()

    def _take_counted(self) -> Counted:
        with self._lock:
            return self._counts.take()


class _Token:
    """One closure: runs some of the steps that were asked for.

    Called again, after its worker was lost, it first gives back what it had
    begun.
    """

    def __init__(self, run: WorkerReadRun, limit: int) -> None:
        self._run = run
        self._limit = limit
        self.claim: Claim | None = None
        self.has_ended = False

    @property
    def has_claimed(self) -> bool:
        """Whether it has begun to run steps."""
        return self.claim is not None

    def end(self) -> None:
        """Notes that it has ended, in whatever way."""
        self.has_ended = True

    def __call__(self) -> None:
        """Runs steps; called by a lane."""
        if self.claim is not None:
            self._run.begins_again(self.claim)
            self.claim = None
        self._run._run(self, self._limit)


def _endless() -> errors.InputError:
    return errors.InputError(
        "The input of a worker never ends, so an epoch would not either; "
        "expected one that ends, or the number of steps. Received: "
        "steps=None, a dataset of infinite cardinality. Give fit() "
        "steps_per_epoch, its validation_data validation_steps, evaluate() "
        "steps; or leave repeat() out of the dataset function."
    )

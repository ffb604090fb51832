"""Some global steps that workers make together, with one call of each ps."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfps_plugin import errors
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.cluster.calls import bounded_calls
from tfps_plugin.cluster.calls import cancelled_calls
from tfps_plugin.cluster.calls import dispatch_context
from tfps_plugin.coordinator.cluster_coordinator import ClusterCoordinator
from tfps_plugin.coordinator.elastic import safe_points
from tfps_plugin.coordinator.elastic.uses import Use
from tfps_plugin.training.synchronous.span_parts import CallOfPs
from tfps_plugin.training.synchronous.span_parts import QueuesOfStep
from tfps_plugin.variables.chief import chief_reads
from tfps_plugin.variables.chief import steps_in_flight
from tfps_plugin.variables.chief import worker_fetches
from tfps_plugin.variables.lookup import graph_checks

# Interval at which a wait returns to Python by itself.
_WAKE_UP_SECONDS = 1.0
# A call of a ps ends within milliseconds once all workers have left.
_END_SECONDS = 30.0
# Puts a message into queues of all ps, or replaces queues.
_QUEUES_SECONDS = 10.0
# Number of times that a ps is told of a worker that has left: a change of the
# cluster's membership may spoil a call.
_MOST_TRIES = 3


class Span:
    """Global steps that are being made: by members, and by every ps.

    Each member makes all steps by one closure, which runs on that worker only.
    Each ps applies them by one call.

    Only one span at a time may use the queues of a step.

    Guarantees: a member whose closure ends early, for whatever reason, leaves,
    and the steps go on without it. If a ps fails, all closures end. When the
    span has ended, nothing of it runs, and no queue has anything left.
    Guarded by `_changed`: everything that has a default below.
    Never call while holding it: the coordinator, queues.

    Attributes:
        num_steps: Number of steps to make.
        seconds: The time that it took; once it has ended.
        num_done: Number of steps that were made; once it has ended.
        error: The exception of a ps; None if there was none.
        member_errors: The exceptions of members that ended early, by worker.
        members: Indices of the workers that began it.
        use: Keeps them from leaving; released in the end. None: nothing does.
    """

    def __init__(
        self,
        coordinator: ClusterCoordinator,
        step: QueuesOfStep,
        appliers: Sequence[CallOfPs],
        relay: Callable[[], Any] | None,
        referee: Callable[..., Any] | None,
        members: Sequence[int],
        num_steps: int,
        make: Callable[[int, int], bool],
        on_ended: Callable[[], None],
    ) -> None:
        """Prepares the steps; `start` begins them.

        Args:
            coordinator: Runs the closures.
            step: The queues of the step.
            appliers: The applier of each ps.
            relay: The chief's function for `step.norms`; None if it has none.
            referee: The chief's function of `step.referee`, likewise.
            members: Indices of the workers that take part; at least one.
            num_steps: Number of steps to make.
            make: Makes that many steps on a worker, on the thread of its lane;
                returns whether its input was long enough.
            on_ended: Called without arguments when the span has ended, on any
                thread.
        """
        self.num_steps = num_steps
        self.seconds = 0.0
        self.num_done = 0
        self.members = list(members)
        self.use: Use | None = None
        self.error: BaseException | None = None
        self.member_errors: dict[int, BaseException] = {}
        self._coordinator = coordinator
        self._step = step
        self._appliers = list(appliers)
        self._relay = relay
        self._referee = referee
        self._make = make
        self._on_ended = on_ended
        self._changed = threading.Condition()
        self._cancellation = cancelled_calls.PartOfConnection()
        # Workers that run, and those that have left but were not announced.
        self._running = set(members)
        self._leaving: set[int] = set()
        self._has_left: set[int] = set()
        # Steps that each ps has made, those that each worker had a part in, and
        # what an applier has found besides.
        self._results: list[tuple[int, list[np.ndarray]]] = []
        self._num_failed = 0
        # Why a ps could not be told that a worker has left.
        self._untold_error: BaseException | None = None
        self._is_aborted = False
        self._has_ended = False
        # Read on this thread, which waits for the recovery of a lost ps. No
        # step is in flight.
        with steps_in_flight.finishing(None):
            self._values = [
                [chief_reads.read(scalar.read_value) for scalar in each.scalars]
                for each in appliers
            ]
        self._thread = threading.Thread(
            target=self._drive, name="tfps-span", daemon=True
        )

    def start(self) -> None:
        """Begins the steps."""
        self._thread.start()

    def hurry(self) -> None:
        """Asks for an early end; steps that all make together need all."""

    @property
    def has_ended(self) -> bool:
        """True once nothing of the span runs any more."""
        return self._has_ended

    @property
    def left(self) -> frozenset[int]:
        """Indices of the members that ended early."""
        return frozenset(self._has_left)

    def wait(self, timeout_seconds: float) -> bool:
        """Waits for the end.

        Returns:
            Whether it has ended.
        """
        if self._thread.ident is None:
            return True  # an interrupt came before it began
        self._thread.join(timeout_seconds)
        return self._has_ended

    def num_parts(self, worker: int) -> int:
        """Returns the number of steps that a member has had a part in.

        Known once the span has ended. A worker that is lost while it sends its
        part may have sent it to some ps only; such a step does not count.

        Args:
            worker: Index of the worker.
        """
        return min(
            (int(parts[worker]) for _, (parts, *_) in self._results), default=0
        )

    @property
    def num_examples(self) -> int:
        """Number of examples that counted; known with a referee, at the end."""
        return max(
            (int(examples) for _, (_, examples) in self._results), default=0
        )

    # On the span's own thread.

    def _drive(self) -> None:
        begun_at = time.monotonic()
        try:
            with safe_points.held_off():
                self._run()
        except BaseException as error:
            self.error = self.error or error
        finally:
            self.seconds = time.monotonic() - begun_at
            if self.use is not None:
                self.use.release()
            self._has_ended = True
            self._on_ended()

    def _run(self) -> None:
        threads = self._call_ps()
        try:
            self._schedule_members()
        finally:
            # Also if not all of them could be scheduled.
            self._await_members()
            try:
                self._await_ps(threads)
            finally:
                # If a ps has failed, all go back to a checkpoint, and the steps
                # of the span are made again.
                if len(self._results) == len(self._appliers):
                    self.num_done = max(made for made, _ in self._results)
                if self._has_left or self._is_aborted:
                    # What who has left was to take is not for the next steps.
                    self._on_all_ps(self._step.renew_queues)
                elif self._referee is not None:
                    self._empty_queues()
        if len(self._results) < len(self._appliers) and self.error is None:
            raise errors.InternalError(
                "Synchronous steps have ended on some parameter servers only. "
                f"Expected the results of {len(self._appliers)}. Received: "
                f"{len(self._results)}. Please report this."
            )

    def _call_ps(self) -> list[threading.Thread]:
        """Begins the call of each ps; returns the threads that wait for it."""
        threads = [
            threading.Thread(
                target=self._apply,
                args=(applier, values),
                name=f"tfps-applier-{number}",
                daemon=True,
            )
            for number, (applier, values) in enumerate(
                zip(self._appliers, self._values, strict=True)
            )
        ]
        for name, function in (
            ("tfps-norms", self._relay),
            ("tfps-referee", self._referee and self._have_decided),
        ):
            if function is not None:
                threads.append(
                    threading.Thread(
                        target=self._run_relay,
                        args=(function,),
                        name=name,
                        daemon=True,
                    )
                )
        for thread in threads:
            thread.start()
        return threads

    def _schedule_members(self) -> None:
        left = list(self.members)
        try:
            while left:
                value = self._coordinator.schedule_on(left[0], self._run_member)
                value.on_ended(functools.partial(self._member_ended, left[0]))
                left.pop(0)
        finally:
            for worker in left:
                self._member_ended(worker)

    def _await_members(self) -> None:
        """Waits until all closures have ended; tells each ps who has left."""
        untold: set[tuple[int, int]] = set()
        num_tries = 0
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._leaving
                        or not self._running
                        or (self._num_failed and not self._is_aborted)
                    ),
                    _WAKE_UP_SECONDS,
                )
                leaving, self._leaving = self._leaving, set()
                leaving -= self._has_left
                self._has_left |= leaving
                is_over = not self._running
                has_failed = bool(self._num_failed)
            if leaving:
                num_tries = 0
            untold |= {
                (worker, ps)
                for worker in leaving
                for ps in range(len(self._appliers))
            }
            if untold and not self._is_aborted:
                untold = self._tell(untold)
                num_tries += 1
            if has_failed or (untold and num_tries >= _MOST_TRIES):
                with self._changed:
                    self.error = self.error or self._untold_error
                self._abort()
                untold = set()
            if is_over and not untold:
                return

    def _tell(self, left: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Tells ps of workers that have left.

        Args:
            left: Indices of a worker and of a ps.

        Returns:
            Those that may not have been told; it does no harm to repeat it.
        """
        outcomes = bounded_calls.call_all(
            lambda pair: self._step.leave(*pair), left, _QUEUES_SECONDS
        )
        failed = {
            pair: outcome.error
            for pair, outcome in outcomes.items()
            if outcome.error is not None
        }
        self._untold_error = None
        for (worker, ps), error in failed.items():
            self._untold_error = error
            if isinstance(error, TimeoutError):
                self._untold_error = self._silent(worker, ps)
        return set(failed)

    def _silent(self, worker: int, ps: int) -> tf.errors.UnavailableError:
        """Returns the error of a ps that does not answer, as TensorFlow's."""
        return tf.errors.UnavailableError(
            None,
            None,
            f"{self._appliers[ps].device} does not take in that worker "
            f"{worker} has left the step. Expected its answer within "
            f"{_QUEUES_SECONDS:g} s.",
        )

    def _await_ps(self, threads: Sequence[threading.Thread]) -> None:
        """Waits for the calls of the ps, after all members have ended.

        Raises:
            InternalError: If they do not end.
        """
        begun_at = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(_WAKE_UP_SECONDS)
            seconds = time.monotonic() - begun_at
            if seconds > 2 * _END_SECONDS:
                raise self._endless()
            if seconds > _END_SECONDS:
                with self._changed:
                    self.error = self.error or self._endless()
            if self._num_failed or seconds > _END_SECONDS:
                self._abort()

    def _endless(self) -> errors.InternalError:
        return errors.InternalError(
            "A call that applies synchronous steps on a parameter server has "
            f"not ended. Expected its end within {_END_SECONDS:g} s after that "
            "of the workers. Received: calls of "
            f"{[each.device for each in self._appliers]}. Check the logs of "
            "the parameter servers, and please report this."
        )

    def _abort(self) -> None:
        """Ends calls that wait for a ps that has failed, or for a worker."""
        with self._changed:
            if self._is_aborted:
                return
            self._is_aborted = True
        self._on_all_ps(self._step.close_queues)
        # Closed queues end calls more gently, but not a part that waits for a
        # task that is gone.
        self._cancellation.start()

    def _on_all_ps(self, function: Callable[[int], None]) -> None:
        """Calls a function for each ps, of which some may not answer."""
        bounded_calls.call_all(
            function, range(len(self._appliers)), _QUEUES_SECONDS
        )

    def _empty_queues(self) -> None:
        """Takes parcels that came too late out of queues, or replaces these."""
        outcomes = bounded_calls.call_all(
            lambda ps: self._appliers[ps].empty(),
            range(len(self._appliers)),
            _QUEUES_SECONDS,
        )
        if any(outcome.error is not None for outcome in outcomes.values()):
            # Once there are others, it does no harm if one is emptied later.
            self._on_all_ps(self._step.renew_queues)

    # On threads of appliers.

    def _apply(self, applier: Any, values: Sequence[tf.Tensor]) -> None:
        with self._calling():
            with tf.device(graph_checks.CPU):
                copies = [tf.identity(value) for value in values]
                arguments = self._steps_and_members()
            with tf.device(applier.device):
                number, *found = applier.function(*arguments, copies)
            number, *found = worker_fetches.arrays([number, *found])
            result = int(number), found
            with self._changed:
                self._results.append(result)
                self._changed.notify_all()

    def _steps_and_members(self) -> tuple[tf.Tensor, ...]:
        """Returns first arguments of the functions of appliers and referees."""
        members = set(self.members)
        return (
            tf.constant(0, tf.int64),
            tf.constant(self.num_steps, tf.int64),
            tf.constant(
                [worker in members for worker in range(self._step.num_workers)]
            ),
        )

    def _have_decided(self) -> None:
        with tf.device(graph_checks.CPU):
            arguments = self._steps_and_members()
        if self._referee is not None:
            self._referee(*arguments)

    def _run_relay(self, relay: Callable[[], Any]) -> None:
        with self._calling():
            relay()

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        """Runs calls of TensorFlow on a thread of the span."""
        executor = tensorflow_execution.new_synchronous_executor()
        try:
            with (
                tensorflow_execution.executor_scope(executor),
                dispatch_context.cancelled_by(self._cancellation),
                compat.clear_device(),
            ):
                yield
        except BaseException as error:
            with self._changed:
                self._num_failed += 1
                if self.error is None and not self._is_aborted:
                    self.error = error
                self._changed.notify_all()

    # On threads of lanes.

    def _run_member(self) -> None:
        worker = dispatch_context.required().worker_index
        try:
            is_complete = self._make(worker, self.num_steps)
        except BaseException as error:
            with self._changed:
                was_given_up = worker not in self._running
            self._leave(worker)
            if self._is_aborted and isinstance(error, tf.errors.OpError):
                # The queues were closed under it; another call has the cause.
                return
            # A call that was given up is cancelled; it has not failed.
            if not was_given_up:
                self.member_errors[worker] = error
            raise
        if not is_complete:
            self._leave(worker)
        with self._changed:
            self._running.discard(worker)
            self._changed.notify_all()

    def _leave(self, worker: int) -> None:
        with self._changed:
            self._leaving.add(worker)
            self._changed.notify_all()

    def _member_ended(self, worker: int) -> None:
        """Called when a closure has ended in any way, or did not run."""
        with self._changed:
            if worker in self._running:
                self._running.discard(worker)
                self._leaving.add(worker)
            self._changed.notify_all()

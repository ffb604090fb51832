"""The referee of steps with backup workers: decides whose parcels count.

Parameter servers do not see each other, and all of them have to take the
parcels of the same workers. Each worker that has sent its parcels says so on
the first ps. There a loop of TensorFlow, part of one call of the chief for many
steps, waits until enough workers have arrived. The chief hands the ruling on to
every ps. A ruling takes a message to each ps; and before, what the loop works
on travels to the first ps and back.

Shape legend: N workers of the cluster.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables
from tfps_plugin.variables.lookup import graph_checks
from tfps_plugin.variables.updates.remote_queues import RemoteQueues

# Stamp of an arrival, and of a parcel, that says that a worker takes no further
# part.
LEFT = int(tf.int64.max)
# There is one queue of each kind on a ps.
_ONLY = 0
# The ps on which workers arrive.
_FIRST = 0


class Round(NamedTuple):
    """The state of one step, before it is decided.

    Attributes:
        number: Number of the step, an int64 scalar.
        is_member_N: Whether each worker takes part in the steps to come.
        tokens_N: Number of the latest token of each worker, int64.
        has_arrived_N: Whether it has sent its parcels of this step.
        is_late_N: Whether it has sent those of an earlier step, and waits.
    """

    number: tf.Tensor
    is_member_N: tf.Tensor
    tokens_N: tf.Tensor
    has_arrived_N: tf.Tensor
    is_late_N: tf.Tensor


class Ruling(NamedTuple):
    """A decision of the referee, the same for every ps.

    Attributes:
        counts_N: Whose parcels of the present step count. Nobody: the step is
            not over.
        grants_N: Who gets a token: that of the next step; if nobody counts,
            that of the present one.
        is_over: Whether there is no member any more.
    """

    counts_N: tf.Tensor
    grants_N: tf.Tensor
    is_over: tf.Tensor


def beginning(first: tf.Tensor, is_member_N: tf.Tensor) -> Round:
    """Returns the state of the first step, of which all members have tokens.

    Args:
        first: Number of the step.
        is_member_N: Whether each worker is a member.
    """
    return Round(
        first,
        is_member_N,
        tf.fill(tf.shape(is_member_N), first),
        tf.zeros_like(is_member_N),
        tf.zeros_like(is_member_N),
    )


def noted(state: Round, worker: tf.Tensor, stamp: tf.Tensor) -> Round:
    """Returns the state after an arrival.

    Args:
        state: The state before.
        worker: Index of the worker.
        stamp: Number of the step whose parcels it has sent; `LEFT`: it takes
            no further part, but what it has sent still counts.
    """
    is_it_N = state.is_member_N & (tf.range(_size(state)) == worker)
    return state._replace(
        is_member_N=state.is_member_N & ~(is_it_N & (stamp == LEFT)),
        has_arrived_N=state.has_arrived_N | (is_it_N & (stamp == state.number)),
        is_late_N=state.is_late_N | (is_it_N & (stamp < state.number)),
    )


def is_due(state: Round, num_backup: int) -> tf.Tensor:
    """Returns whether a ruling has to be made before anybody else arrives.

    Args:
        state: The state of the step.
        num_backup: Number of members whose parcels a step does without.
    """
    return _is_decided(state, num_backup) | _needs_the_late(state, num_backup)


def ruling(state: Round, last: tf.Tensor, num_backup: int) -> Ruling:
    """Returns the ruling that is due.

    Args:
        state: The state of the step.
        last: Number of the step after the last. After the last step, members
            that would not notice its end by their own token get one with this
            number.
        num_backup: Number of members whose parcels a step does without.
    """
    is_decided = _is_decided(state, num_backup)
    is_last = is_decided & (state.number + 1 >= last)
    waits_N = state.is_late_N | (state.has_arrived_N & is_decided)
    return Ruling(
        state.has_arrived_N & is_decided,
        state.is_member_N
        & tf.where(is_last, state.tokens_N < last - 1, waits_N),
        ~tf.reduce_any(state.is_member_N | state.has_arrived_N),
    )


def following(state: Round, ruling: Ruling) -> Round:
    """Returns the state after a ruling.

    Args:
        state: The state before.
        ruling: The ruling.
    """
    is_decided = tf.reduce_any(ruling.counts_N)
    number = state.number + tf.cast(is_decided, tf.int64)
    return Round(
        number,
        state.is_member_N,
        tf.where(ruling.grants_N, number, state.tokens_N),
        state.has_arrived_N & ~is_decided,
        state.is_late_N & ~ruling.grants_N,
    )


def _size(state: Round) -> tf.Tensor:
    return tf.size(state.is_member_N)


def _count(is_one_N: tf.Tensor) -> tf.Tensor:
    return tf.math.count_nonzero(is_one_N, dtype=tf.int32)


def _num_needed(state: Round, num_backup: int) -> tf.Tensor:
    # Who has left after it has arrived is one of the step all the same.
    num_parts = _count(state.is_member_N | state.has_arrived_N)
    return tf.minimum(num_parts, tf.maximum(1, num_parts - num_backup))


def _is_decided(state: Round, num_backup: int) -> tf.Tensor:
    return _count(state.has_arrived_N) >= _num_needed(state, num_backup)


def _needs_the_late(state: Round, num_backup: int) -> tf.Tensor:
    """Returns whether the step cannot end, for want of members with tokens.

    The others have left. Those that are late have to help out.
    """
    may_arrive_N = state.is_member_N & (state.tokens_N == state.number)
    num_at_most = _count(may_arrive_N | state.has_arrived_N)
    return (num_at_most < _num_needed(state, num_backup)) & tf.reduce_any(
        state.is_member_N & state.is_late_N
    )


class Referee:
    """Queues by which workers arrive, and by which every ps gets rulings.

    Attributes:
        num_backup: Number of members whose parcels a step does without.
        arrivals: The queue of arrivals, on the first ps: worker and stamp.

    Threading: only the thread that traces uses `arrive`, `ruling_on` and
    `function`; all else is safe from any.
    """

    def __init__(
        self, devices: Sequence[str], num_workers: int, num_backup: int
    ) -> None:
        """Prepares the queues.

        Args:
            devices: Device of each ps.
            num_workers: Number of workers of the cluster.
            num_backup: Number of members whose parcels a step does without.
        """
        self.num_backup = num_backup
        self._num_workers = num_workers
        self.arrivals = RemoteQueues(
            devices[_FIRST], "arrivals", 1, [tf.int32, tf.int64]
        )
        self._rulings = [
            RemoteQueues(device, "rulings", 1, [tf.bool, tf.bool, tf.bool])
            for device in devices
        ]

    def close(self, ps: int) -> None:
        """Ends calls that wait at the queues of a ps."""
        for queues in self._queues_of(ps):
            queues.close()

    def renew(self, ps: int) -> None:
        """Replaces the queues of a ps by empty ones."""
        for queues in self._queues_of(ps):
            queues.renew()

    def _queues_of(self, ps: int) -> list[RemoteQueues]:
        return [self._rulings[ps], *([self.arrivals] if ps == _FIRST else [])]

    def leave(self, worker: int, ps: int) -> None:
        """Tells the referee that a worker takes no further part.

        Args:
            worker: Index of the worker.
            ps: Index of the ps that is told; only the first has arrivals.
        """
        if ps == _FIRST:
            self.arrivals.put_now(_ONLY, [worker, LEFT])

    def arrive(self, worker: tf.Tensor, stamp: tf.Tensor) -> tf.Operation:
        """Says that a worker has sent its parcels; for use in a step.

        Args:
            worker: Index of the worker, an int32 scalar.
            stamp: Number of the step, on the first ps.
        """
        return self.arrivals.put(_ONLY, [worker, stamp])

    def forget_arrivals(self) -> tf.Tensor:
        """Empties the queue of arrivals; for use in a function.

        Returns:
            A tensor that waits for it.
        """

        def forget(size: tf.Tensor) -> tuple[tf.Tensor]:
            del size
            with tf.control_dependencies(self.arrivals.take(_ONLY)):
                return (self.arrivals.size(_ONLY),)

        (size,) = tf.while_loop(
            lambda size: size > 0,
            forget,
            (self.arrivals.size(_ONLY),),
            parallel_iterations=1,
        )
        return size

    def ruling_on(self, ps: int) -> Ruling:
        """Waits for the next ruling; for use in an applier.

        Args:
            ps: Index of the ps that runs the function.
        """
        counts_N, grants_N, is_over = self._rulings[ps].take(_ONLY)
        return Ruling(
            tf.ensure_shape(counts_N, [self._num_workers]),
            tf.ensure_shape(grants_N, [self._num_workers]),
            tf.ensure_shape(is_over, []),
        )

    @functools.cached_property
    def function(self) -> tf.types.experimental.ConcreteFunction:
        """The function by which the chief has steps decided.

        It takes the number of the first step and of the step after the last,
        int64 scalars, and whether each worker is a member, a vector. It returns
        the number of the step after the last that was made.
        """

        # The name that `strategy.explain` shows.
        def referee(
            first: tf.Tensor, last: tf.Tensor, is_member_N: tf.Tensor
        ) -> tf.Tensor:
            return self._run(first, last, is_member_N)

        with tensorflow_variables.clear_device():
            return tf.function(referee, autograph=False).get_concrete_function(
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([], tf.int64),
                tf.TensorSpec([self._num_workers], tf.bool),
            )

    def _run(
        self, first: tf.Tensor, last: tf.Tensor, is_member_N: tf.Tensor
    ) -> tf.Tensor:
        def rule(_: tf.Tensor, state: Round) -> tuple[tf.Tensor, Round]:
            state, made = self._decided(state, last)
            with tf.control_dependencies(self._announced(made)):
                is_over = made.is_over | (state.number >= last)
            return is_over, state

        with tf.device(graph_checks.CPU):
            _, state = tf.while_loop(
                lambda is_over, _: ~is_over,
                rule,
                (first >= last, beginning(first, is_member_N)),
                parallel_iterations=1,
            )
            return tf.identity(state.number)

    def _decided(self, state: Round, last: tf.Tensor) -> tuple[Round, Ruling]:
        """Waits for arrivals; returns the next ruling, and the state after it.

        All of it is on the first ps, whatever the number of workers: nothing
        else has to hear of each of them.
        """
        with tf.device(self.arrivals.device):
            # Each iteration begins with tensors of the ps.
            state = Round(*map(tf.identity, state))

            def note(state: Round) -> tuple[Round]:
                worker, stamp = self.arrivals.take(_ONLY)
                return (
                    noted(
                        state,
                        tf.ensure_shape(worker, []),
                        tf.ensure_shape(stamp, []),
                    ),
                )

            (state,) = tf.while_loop(
                lambda state: ~is_due(state, self.num_backup),
                note,
                (state,),
                parallel_iterations=1,
            )
            made = ruling(state, tf.identity(last), self.num_backup)
            state = following(state, made)
        return (
            Round(*map(tf.identity, state)),
            Ruling(*map(tf.identity, made)),
        )

    def _announced(self, made: Ruling) -> list[tf.Operation]:
        """Sends a ruling to every ps, by way of the chief."""
        return [queues.put(_ONLY, list(made)) for queues in self._rulings]

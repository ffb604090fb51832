"""The applier of steps with backup workers: takes what the referee says.

A member whose parcels do not count goes on with the token of a later step. Its
parcels are taken out of the mailbox, so that there are never more than a few.
"""

from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_execution
from tfps_plugin.training.synchronous.applier import Applier
from tfps_plugin.training.synchronous.applier import Sum
from tfps_plugin.training.synchronous.backup.referee import LEFT
from tfps_plugin.training.synchronous.backup.referee import Referee
from tfps_plugin.training.synchronous.global_step import GlobalStep


class _Ruled(NamedTuple):
    """The referee's ruling on a step.

    Attributes:
        counts: Whose parcels count, a vector; nobody's: there is no step.
        grants: Who gets the token of the next step, a vector.
    """

    counts: tf.Tensor
    grants: tf.Tensor


class RefereedApplier(Applier):
    """Applies parcels of the members that arrive first.

    Its function also returns the number of examples that counted, an int64
    scalar.

    Threading: see `Applier`; `empty` only while no call uses the queues.
    """

    def __init__(self, step: GlobalStep, ps: int, referee: Referee) -> None:
        """Traces the functions, in the strategy's scope.

        Args:
            step: A step that was traced.
            ps: Index of the ps.
            referee: The step's referee.

        Raises:
            UnsupportedError: If an update needs a variable of another ps.
        """
        self._referee = referee
        super().__init__(step, ps)
        with compat.clear_device():
            self._empty = tf.function(
                self._emptied, autograph=False
            ).get_concrete_function()

    def empty(self) -> None:
        """Takes everything out of the queues that members put parcels into."""
        executor = tensorflow_execution.new_synchronous_executor()
        with (
            tensorflow_execution.executor_scope(executor),
            tf.init_scope(),
            compat.clear_device(),
            tf.device(self.device),
        ):
            self._empty()

    def _emptied(self) -> tf.Tensor:
        with tf.device(self.device):
            is_left = self._clear(tf.ones([self._num_workers], tf.bool))
            if self._ps == 0:
                return self._referee.forget_arrivals()
            return tf.size(is_left)

    def _tallies(self) -> list[tf.Tensor]:
        return [*super()._tallies(), tf.zeros([], tf.int64)]

    def _counted(
        self, tallies: list[tf.Tensor], members: tf.Tensor, total: Sum
    ) -> list[tf.Tensor]:
        num_parts, num_examples = tallies
        counts = total.ruling.counts & members
        return [
            num_parts + tf.cast(counts, tf.int64),
            num_examples + tf.cast(total.num_examples, tf.int64),
        ]

    def _goes_on(self, total: Sum) -> tf.Tensor:
        # Also if this ps has got no parcel of those who count, because they
        # are lost: all ps make the same number of steps.
        return tf.reduce_any(total.ruling.counts)

    def _is_empty(self, total: Sum) -> tf.Tensor:
        return tf.equal(total.num_parcels, 0)

    def _granted(
        self, members: tf.Tensor, number: tf.Tensor, last: tf.Tensor, total: Sum
    ) -> tf.Tensor:
        # Those who get a token of a step that is not made end by it.
        del number, last
        return members & total.ruling.grants

    def _collect(
        self, number: tf.Tensor, members: tf.Tensor, last: tf.Tensor
    ) -> Sum:
        """Takes parcels of those who count; none after the last step."""
        nobody = tf.zeros([self._num_workers], tf.bool)

        def goes_on(
            counts: tf.Tensor,
            grants: tf.Tensor,
            is_over: tf.Tensor,
            is_left: tf.Tensor,
        ) -> tf.Tensor:
            del grants, is_left
            return (number < last) & ~tf.reduce_any(counts) & ~is_over

        def rule(
            counts: tf.Tensor,
            grants: tf.Tensor,
            is_over: tf.Tensor,
            is_left: tf.Tensor,
        ) -> tuple[tf.Tensor, ...]:
            counts, grants, is_over = self._referee.ruling_on(self._ps)
            # They have no token of a later step, so all that they have sent is
            # of earlier ones.
            is_left |= self._clear(grants & ~counts)
            at_once = grants & members & ~is_left & ~tf.reduce_any(counts)
            given = self._grant(at_once, number)
            with tf.control_dependencies([given]):
                return counts, tf.identity(grants), is_over, is_left

        counts, grants, _, is_left = tf.while_loop(
            goes_on,
            rule,
            (nobody, nobody, tf.constant(False), nobody),
            parallel_iterations=1,
        )
        total = self._summed(counts & members & ~is_left, number)
        return total._replace(
            is_left=total.is_left | is_left, ruling=_Ruled(counts, grants)
        )

    def _receive(self, worker: tf.Tensor, number: tf.Tensor) -> list[tf.Tensor]:
        """Takes the parcel of a step; drops those of earlier ones."""
        parcel = self._mailboxes.take(worker)
        return tf.while_loop(
            lambda stamp, *_: tf.ensure_shape(stamp, []) < number,
            lambda *_: [*map(tf.identity, self._mailboxes.take(worker))],
            parcel,
            shape_invariants=[tf.TensorShape(None)] * len(parcel),
            parallel_iterations=1,
        )

    def _clear(self, whom: tf.Tensor) -> tf.Tensor:
        """Takes everything out of mailboxes, without waiting.

        Args:
            whom: Whether to clear the mailbox of each worker, a vector.

        Returns:
            Whether each worker has said that it leaves.
        """
        workers = tf.cast(tf.where(whom)[:, 0], tf.int32)

        def clear(
            place: tf.Tensor, is_left: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            worker = workers[place]

            def drop(_: tf.Tensor, leaves: tf.Tensor) -> tuple[tf.Tensor, ...]:
                stamp, *_ = self._mailboxes.take(worker)
                stamp = tf.ensure_shape(stamp, [])
                with tf.control_dependencies([stamp]):
                    return self._mailboxes.size(worker), leaves | (
                        stamp == LEFT
                    )

            _, leaves = tf.while_loop(
                lambda size, _: size > 0,
                drop,
                (self._mailboxes.size(worker), tf.constant(False)),
                parallel_iterations=1,
            )
            is_it = tf.range(self._num_workers) == worker
            return place + 1, is_left | (is_it & leaves)

        _, is_left = tf.while_loop(
            lambda place, _: place < tf.size(workers),
            clear,
            (tf.constant(0), tf.zeros([self._num_workers], tf.bool)),
            parallel_iterations=1,
        )
        return is_left

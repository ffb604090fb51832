"""The states of random seed generators: every lane has its own sequence.

A seed must differ from worker to worker, or two of them draw the same dropout
mask.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat
from tfps_plugin._compat.graph import tensorflow_variables as compat
from tfps_plugin._compat.runtime import tensorflow_strategy
from tfps_plugin.cluster.calls.dispatch_context import DispatchContext
from tfps_plugin.variables.chief.chief_reads import on_the_chief
from tfps_plugin.variables.per_worker.worker_local import WorkerLocalVariable

# Distance of the seeds of adjacent lanes: a prime, so that no two seeds collide
# when Keras takes their remainders modulo 933199 or 2**31 - 2.
_SEED_STRIDE = 1_000_003
# Lanes of a worker that came back are numbered from this much further on.
_LANES_PER_GENERATION = 10_007
# More generations than any worker has.
_GENERATIONS = 1009


class WorkerLocalSeed(WorkerLocalVariable):
    """The state of a random seed generator: every lane has its own sequence.

    The first lane's sequence is that of a single process, so that a run with
    one lane reproduces a run without a cluster. A worker that was lost and came
    back gets a new sequence, so that it does not repeat itself.

    The chief sees its own seed, and the count of the lane that drew most
    often. So it saves a state to continue from, and its own draws repeat no
    lane's sequence. (Generators that Keras uses without order, such as its
    global one, keep no count; there the chief sees its own state.)
    """

    def __init__(self, value: tf.Tensor, name: str, **options: Any) -> None:
        """Creates the state.

        Args:
            value: Initial state of the first lane: the seed, and the number of
                draws.
            name: Name shown to the user.
            **options: As for `WorkerLocalVariable`.
        """
        super().__init__(value, name, **options)
        self._begin = value.numpy()

    def successor(self) -> tf.Tensor:
        """Returns a state to continue from after the cluster was lost.

        Returns:
            A state that no lane has had; the same for the same seed.
        """
        seed = int(self._begin[0]) + _GENERATIONS * _LANES_PER_GENERATION
        return tf.constant([seed % self._dtype.max, 0], self._dtype)

    def _weakly(
        self, look_up: Callable[[Any], tf.Tensor]
    ) -> Callable[[], tf.Tensor]:
        """Makes functions keep it: Keras may replace its global generator."""
        return functools.partial(look_up, self)

    def _initial_copy(self, context: DispatchContext) -> tf.Tensor:
        state = compat.read_resource(self.own_handle, self._dtype)
        sequence = (
            context.lane_index + context.generation * _LANES_PER_GENERATION
        )
        return state + _first_of(state) * sequence * _SEED_STRIDE

    def _counts(self, lane_index: int) -> bool:
        return True

    def _note_assignment(self) -> None:
        pass

    def _put_together(
        self, own: tf.Tensor, copies: list[tf.Tensor]
    ) -> tf.Tensor:
        furthest = own[1]
        for copy in copies:
            keeps_count = (copy[0] - own[0]) % _SEED_STRIDE == 0
            furthest = tf.where(
                keeps_count, tf.maximum(furthest, copy[1]), furthest
            )
        return tf.stack([own[0], furthest])

    def _assign_by(
        self, method: str, value: Any, name: str | None, read_value: bool
    ) -> Any:
        """Assigns this lane's state; on the chief, the state of all lanes.

        An unordered draw on the chief changes only the chief's own state.
        """
        if method == "assign" and on_the_chief() and self._resident.existing():
            own = compat.read_resource(self.own_handle, self._dtype)
            value = tf.convert_to_tensor(value, self._dtype)
            if tf.reduce_all(value == keras_compat.next_unordered_seed(own)):
                return super(WorkerLocalVariable, self)._assign_by(
                    method, value, name, read_value
                )
        return super()._assign_by(method, value, name, read_value)


def claim_global_seeds(strategy: tf.distribute.Strategy) -> None:
    """Makes draws without a seed use a generator of this strategy.

    An example is `keras.random.normal(shape)`. Keras makes one generator for
    the whole process when it is first needed: on the chief, or under another
    strategy, whose workers may be gone.

    Args:
        strategy: The strategy whose scope is entered.
    """
    state = keras_compat.global_seed_state()
    if state is None or tensorflow_strategy.strategy_of(state) is strategy:
        return
    # Do not take over the draws of another strategy's lanes.
    if not isinstance(state, WorkerLocalSeed):
        value = compat.read_resource(state.handle, state.dtype)
    elif state.is_gone:
        value = state.successor()
    else:
        value = compat.read_resource(state.own_handle, state.dtype)
    keras_compat.make_global_seed_generator(value)


def _first_of(state: tf.Tensor) -> tf.Tensor:
    """Returns a mask: one for the seed itself, zero for the number of draws."""
    return tf.one_hot(0, state.shape[0], dtype=state.dtype)

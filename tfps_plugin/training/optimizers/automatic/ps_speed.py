"""Speed at which a parameter server updates variables."""

import time
from typing import Any

import tensorflow as tf

from tfps_plugin.variables.chief import chief_reads

# Larger than the inner caches of a processor, as most tables are.
_NUM_ELEMENTS = 1 << 18
# Many, because the time of the call is included: if the network or the
# processor is busy, an update seems to take longer rather than shorter.
_PASSES = 16
_RUNS = 3
# A pass changes a table and two slots.
_VARIABLES = 3


def seconds_per_element(device: str) -> float:
    """Measures passes of Adam on a parameter server.

    Takes about as long as ten steps of a small model. May be called while a
    function is traced.

    Returns:
        Seconds per element of a table or of a slot.

    Raises:
        tf.errors.OpError: If the parameter server does not answer.
    """
    with tf.init_scope(), tf.device(device):
        run = tf.function(_passes, autograph=False).get_concrete_function()
        # The first call brings the function to the parameter server.
        seconds = min([_seconds(run, device) for _ in range(1 + _RUNS)][1:])
    return seconds / (_PASSES * _NUM_ELEMENTS * _VARIABLES)


def _seconds(run: Any, device: str) -> float:
    def read() -> float:
        begun_at = time.monotonic()
        with tf.device(device):
            run().numpy()
        return time.monotonic() - begun_at

    return chief_reads.read(read)


def _passes() -> tf.Tensor:
    """Updates a table and two slots many times with a dense gradient."""
    # Cannot be computed ahead of time.
    some = tf.cast(tf.timestamp() % 1.0, tf.float32)
    start = tf.fill([_NUM_ELEMENTS], 1.0 + some)

    def update(
        step: tf.Tensor, table: tf.Tensor, first: tf.Tensor, second: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        gradient = start * tf.cast(step, tf.float32)
        first += (gradient - first) * 0.1
        second += (tf.square(gradient) - second) * 0.001
        table -= first * 0.01 / (tf.sqrt(second) + 1e-7)
        return step + 1, table, first, second

    _, table, first, second = tf.while_loop(
        lambda step, *_: step < _PASSES,
        update,
        (tf.constant(0), start, tf.zeros_like(start), tf.zeros_like(start)),
        parallel_iterations=1,
    )
    return table[0] + first[0] + second[0]

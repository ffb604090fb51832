"""Speed at which a parameter server updates variables."""

import time

import tensorflow as tf

from tfps_plugin.variables import chief_reads

# Larger than a processor's nearest caches, as most tables are.
_NUM_ELEMENTS = 1 << 18
_PASSES = 8
_RUNS = 3
# What a pass changes: a table and two slots.
_VARIABLES = 3


def seconds_per_element(device: str) -> float:
    """Measures passes of Adam on a parameter server.

    Takes about as long as ten steps of a small model. May be called while a
    function is traced.

    Args:
        device: Of the parameter server.

    Returns:
        Seconds for each element of a table, and for each of a slot.

    Raises:
        tf.errors.OpError: If the parameter server does not answer.
    """
    with tf.init_scope(), tf.device(device):
        run = tf.function(_passes, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.int32)
        )
        few, many = (
            min(_seconds(run, number, device) for _ in range(_RUNS))
            for number in (1, 1 + _PASSES)
        )
    # What the call itself takes is in both.
    seconds = max(0.0, many - few) / _PASSES
    return seconds / (_NUM_ELEMENTS * _VARIABLES)


def _seconds(
    run: tf.types.experimental.Callable, number: int, device: str
) -> float:
    def read() -> float:
        begun_at = time.monotonic()
        with tf.device(device):
            run(tf.constant(number)).numpy()
        return time.monotonic() - begun_at

    return chief_reads.read(read)


def _passes(number: tf.Tensor) -> tf.Tensor:
    """Updates a table and two slots that many times, by a dense gradient."""
    start = tf.fill([_NUM_ELEMENTS], 1.0 / tf.cast(number, tf.float32))

    def update(
        step: tf.Tensor, table: tf.Tensor, first: tf.Tensor, second: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        gradient = start * tf.cast(step, tf.float32)
        first += (gradient - first) * 0.1
        second += (tf.square(gradient) - second) * 0.001
        table -= first * 0.01 / (tf.sqrt(second) + 1e-7)
        return step + 1, table, first, second

    _, table, first, second = tf.while_loop(
        lambda step, *_: step < number,
        update,
        (tf.constant(0), start, tf.zeros_like(start), tf.zeros_like(start)),
        parallel_iterations=1,
    )
    return table[0] + first[0] + second[0]

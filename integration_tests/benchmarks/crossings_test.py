"""The counter counts what was built by hand."""

import tensorflow as tf

from . import crossings

_PS = ["/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/task:1"]


def test_each_tensor_counts_once_for_each_task_that_uses_it() -> None:
    @tf.function(autograph=False)
    def inner(x: tf.Tensor) -> tf.Tensor:
        with tf.device(_PS[1]):
            y = tf.sin(x)  # crosses: x to ps 1
        return y * 2.0  # crosses: y to the worker

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec([3], tf.float32)]
    )
    def step(x: tf.Tensor) -> tf.Tensor:
        doubled = x * 2.0
        with tf.device(_PS[0]):
            a = tf.sin(doubled)  # crosses: doubled to ps 0
            b = tf.cos(doubled)  # the same tensor to the same task
            c = a + b
            tf.tan(doubled)  # leads nowhere
        # Crosses: doubled to ps 1, c to the worker.
        return inner(doubled) + c + c

    assert crossings.count(step.get_concrete_function()) == {
        "rows and values": 2,
        "ids and gradients": 2,
        "all": 4,
    }

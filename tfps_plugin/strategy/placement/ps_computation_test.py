"""Tests of computations beside variables; here all are in this process."""

import keras
import tensorflow as tf

from tfps_plugin.strategy.placement import ps_computation
from tfps_plugin.variables.step_trace import StepTrace

_PS = "/job:ps/replica:0/task:1/device:CPU:0"


def test_without_parameter_servers_nothing_changes() -> None:
    layer = keras.layers.Dense(3)
    with ps_computation.on_ps(layer):
        layer.build((None, 2))
    with ps_computation.on_ps([layer, tf.Variable(1.0), tf.Module()]):
        assert layer(tf.ones([1, 2])).shape == [1, 3]


def test_losses_follow_outputs_of_a_ps_that_computes() -> None:
    devices = []

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        with tf.device(_PS):
            logits = tf.square(x)
        with ps_computation.beside(logits):
            devices.append(tf.identity(x).op.device)
        StepTrace.current().computes_on_ps(_PS, [])
        with ps_computation.beside({"a": logits}):
            devices.append(tf.identity(x).op.device)
        with ps_computation.beside([logits, x]):
            devices.append(tf.identity(x).op.device)
        return x

    with tf.device(None):
        function.get_concrete_function(tf.TensorSpec([2]))
    assert devices == ["", _PS, ""]

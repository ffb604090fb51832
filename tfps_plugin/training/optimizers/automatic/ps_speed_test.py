import tensorflow as tf

from tfps_plugin.training.optimizers.automatic import ps_speed


def test_a_device_takes_some_time_for_each_element() -> None:
    seconds = ps_speed.seconds_per_element("/cpu:0")
    # From one that does 10^12 operations a second to one that does 10^5.
    assert 1e-12 < seconds < 1e-4


def test_it_is_measured_while_a_function_is_traced() -> None:
    @tf.function
    def step() -> tf.Tensor:
        return tf.constant(ps_speed.seconds_per_element("/cpu:0"), tf.float64)

    traced = step.get_concrete_function()
    assert 1e-12 < float(traced()) < 1e-4
    # The function contains none of the measurement.
    assert len(traced.graph.get_operations()) <= 3

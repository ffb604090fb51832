"""Many training steps as one function of a worker."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfps_plugin._compat import keras as keras_compat


def make_step_function(
    model: keras.Model, step: Callable[[Any], Any]
) -> Callable[[Any, tf.Tensor], Any]:
    """Packs a model's step into a loop.

    Args:
        model: The model; its strategy runs the step.
        step: `train_step` or `test_step`, of one batch.

    Returns:
        A `tf.function` of a `tf.data.Iterator` and a number of steps. It runs
        that many steps and returns what the last one returned.
    """
    strategy = model.distribute_strategy
    step = keras_compat.without_optionals(model, step)

    @tf.autograph.experimental.do_not_convert
    def one_step(data: Any) -> Any:
        # Parts of a step need no data, such as counting it: where the input
        # has run dry, they must not happen either.
        with tf.control_dependencies(
            tf.nest.flatten(data, expand_composites=True)
        ):
            outputs = strategy.run(step, args=(data,))
        return tf.nest.map_structure(tf.convert_to_tensor, outputs)

    one_step = tf.function(one_step)

    @tf.autograph.experimental.do_not_convert
    def many_steps(iterator: Any, num_steps: tf.Tensor) -> Any:
        # Tracing tells what a step returns; the loop needs to know before.
        traced = one_step.get_concrete_function(iterator.element_spec)
        specs = tf.nest.map_structure(_spec, traced.structured_outputs)

        def body(done: tf.Tensor, outputs: Any) -> Any:
            del outputs
            return done + 1, one_step(next(iterator))

        _, outputs = tf.while_loop(
            lambda done, outputs: done < num_steps,
            body,
            loop_vars=(tf.constant(0), tf.nest.map_structure(_zeros, specs)),
            shape_invariants=(
                tf.TensorShape([]),
                tf.nest.map_structure(lambda spec: spec.shape, specs),
            ),
            # Steps follow one another: the next reads what this one wrote.
            parallel_iterations=1,
        )
        return outputs

    return tf.function(many_steps, reduce_retracing=True)


def _spec(output: Any) -> tf.TensorSpec:
    return tf.TensorSpec(output.shape, output.dtype)


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [0 if size is None else size for size in spec.shape.as_list()]
    return tf.zeros(shape, spec.dtype)

"""Functions that tell the chief which step a worker has made.

With backup workers, a late worker leaves steps out, so the chief cannot know
the number of the step that a call was. A function of workers tells it by the
shape of one more result: the answer of a worker has the shapes of its results,
and the values are fetched later, by messages of their own.
"""

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfps_plugin._compat.graph import tensorflow_graphs
from tfps_plugin.variables.lookup import graph_checks


class NumberedResult(NamedTuple):
    """The result of a step.

    Attributes:
        outputs: What the user's function returns.
        number: Number of the step.
    """

    outputs: Any
    number: int


def numbered(
    function: tf.types.experimental.ConcreteFunction, number: tf.Tensor
) -> tf.types.experimental.ConcreteFunction:
    """Returns a function that also tells a number.

    Args:
        function: A function that was traced.
        number: An int64 scalar of its graph.

    Returns:
        A function for `result_of`, of the same arguments; always the same one
        for a function.
    """
    made: tf.types.experimental.ConcreteFunction = tensorflow_graphs.attached(
        function.graph,
        "numbered",
        lambda: tensorflow_graphs.with_output(function, number, _as_shape),
    )
    return made


def result_of(returned: Any) -> NumberedResult:
    """Returns the result of a step, without a message.

    Args:
        returned: What a function of `numbered` has returned, on a worker.
    """
    outputs, told = returned
    return NumberedResult(outputs, int(told.shape[0]))


def _as_shape(number: tf.Tensor) -> tf.Tensor:
    """Returns a tensor without elements, with the number in its shape."""
    with tf.device(graph_checks.CPU):
        return tf.zeros(tf.stack([number, 0]), tf.bool)

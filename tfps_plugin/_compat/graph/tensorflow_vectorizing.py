"""Private TensorFlow API: vectorized functions.

`tf.vectorized_map` traces a function of one element, and then converts each of
its operations to one for all elements. An operation whose results differ in
shape between elements has no such counterpart, and only TensorFlow can define
one.
"""

import contextlib
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.eager import record
from tensorflow.python.ops.parallel_for import control_flow_ops
from tensorflow.python.ops.parallel_for import pfor

# A type of operation that TensorFlow does not vectorize, that takes and returns
# any values, and that cannot run by mistake: its function does not exist.
_STAND_IN = "PyFuncStateless"
_COLLECTION = "tfps_vectorized_element"


def element() -> tf.Tensor | None:
    """Returns the number of the element that the function is traced for.

    Returns:
        A scalar of this function or of one around it; None if the function is
        not being vectorized.
    """
    if tf.executing_eagerly():
        return None
    graph: Any = tf.compat.v1.get_default_graph()
    while graph is not None:
        numbers: list[tf.Tensor] = graph.get_collection_ref(_COLLECTION)
        if numbers:
            return numbers[-1]
        graph = getattr(graph, "outer_graph", None)
    return None


def stand_in(
    given: tf.Tensor,
    number: tf.Tensor,
    like: tf.TensorSpec,
    of_all: Callable[[tf.Tensor], tf.Tensor],
    source: tf.Tensor,
    no_gradient: Callable[[], Exception],
) -> tf.Tensor:
    """Returns a stand-in for a result of a function that is being vectorized.

    Args:
        given: The tensor that the result is computed from.
        number: The result of `element`.
        like: Shape and dtype of the result.
        of_all: Computes the results of all elements at once. It receives
            `given` of all elements, stacked along a first axis.
        source: The tensor that the result depends on, for tapes.
        no_gradient: Creates the error for code that computes the gradient of
            one element, inside the function.

    Returns:
        The result of one element.
    """
    with record.stop_recording():
        (result,) = tf.raw_ops.PyFuncStateless(
            # With the number, the result differs by element in any case.
            input=[given, number],
            token="tfps",
            Tout=[like.dtype],
        )
    result.set_shape(like.shape)
    result.op._tfps_of_all = of_all

    def backward(*_: Any) -> Any:
        raise no_gradient()

    record.record_operation("TfpsStandIn", [result], [source], backward)
    return result


def _for_all_elements(given: Any) -> Any:
    """Converts a stand-in to the results of all elements."""
    of_all = getattr(given.op, "_tfps_of_all", None)
    if of_all is None:
        raise pfor.ConversionNotImplementedError(
            "No pfor vectorization defined for a function of Python."
        )
    tensor, is_stacked, _ = given.input(0)
    results = of_all(tensor)
    if not is_stacked:
        # Later operations would count as equal for all elements, and
        # would keep the stand-in.
        count = given.pfor.loop_len_vector[0]
        results = tf.repeat(results[tf.newaxis], count, axis=0)
    return pfor.wrap(results, True)


def vectorize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `_pfor_impl` whose function can detect its vectorization."""
    if _STAND_IN not in pfor._pfor_converter_registry:
        pfor.RegisterPFor(_STAND_IN)(_for_all_elements)

    @functools.wraps(original)
    def pfor_impl(loop_fn: Any, iters: Any, *args: Any, **kwargs: Any) -> Any:
        converted = autograph.tf_convert(loop_fn, ag_ctx.control_status_ctx())

        @tf.autograph.experimental.do_not_convert
        def knowing(number: tf.Tensor) -> Any:
            with _vectorizing(number):
                return converted(number)

        def knowing_with_config(number: tf.Tensor, pfor_config: Any) -> Any:
            with _vectorizing(number):
                return loop_fn(number, pfor_config=pfor_config)

        has_config = control_flow_ops._loop_fn_has_config(loop_fn)
        function = knowing_with_config if has_config else knowing
        return original(function, iters, *args, **kwargs)

    return pfor_impl


@contextlib.contextmanager
def _vectorizing(number: tf.Tensor) -> Iterator[None]:
    numbers = number.graph.get_collection_ref(_COLLECTION)
    numbers.append(number)
    try:
        yield
    finally:
        numbers.pop()

"""Private TensorFlow API: what is vectorized of a function.

`tf.vectorized_map` traces a function of one element, and then makes each of
its operations anew, for all elements at once. An operation whose results differ
in shape from element to element has no such counterpart, and nobody outside of
TensorFlow can give it one.
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

# A kind of operation that TensorFlow does not vectorize, takes and returns
# anything, and cannot run by mistake: its function does not exist.
_STAND_IN = "PyFuncStateless"
_COLLECTION = "tfps_vectorized_element"


def element() -> tf.Tensor | None:
    """The number of the element that the present function is traced for.

    Returns:
        A scalar of this function or of one around it; None: the function is
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
        given: What the result is computed from.
        number: From `element`.
        like: Shape and dtype of the result.
        of_all: Computes the results of all elements at once: it is given what
            `given` is for each of them, along a first axis.
        source: What tapes know by that the result depends on it.
        no_gradient: Makes the error of whoever asks for the gradient of one
            element, inside of the function.

    Returns:
        The result of one element.
    """
    with record.stop_recording():
        (result,) = tf.raw_ops.PyFuncStateless(
            # By the number, there is one for each element in any case.
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
    """Makes what a stand-in stands for."""
    of_all = getattr(given.op, "_tfps_of_all", None)
    if of_all is None:
        raise pfor.ConversionNotImplementedError(
            "No pfor vectorization defined for a function of Python."
        )
    tensor, is_stacked, _ = given.input(0)
    results = of_all(tensor)
    if not is_stacked:
        # What follows would be taken for the same for all elements, and be
        # left as it is, with the stand-in.
        count = given.pfor.loop_len_vector[0]
        results = tf.repeat(results[tf.newaxis], count, axis=0)
    return pfor.wrap(results, True)


def vectorize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `_pfor_impl` whose function knows that it is vectorized."""
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

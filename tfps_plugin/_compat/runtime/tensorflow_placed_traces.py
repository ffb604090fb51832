"""Private TensorFlow API: traced functions with variables that have moved.

A trace has the devices of the variables that it uses. Once one of them is on
another device, a `tf.function` is traced again when it is next called. A
concrete function cannot be, and refuses the call.

Used since TensorFlow 2.20: `Function._function_cache`,
`ConcreteFunction._captured_inputs`.
"""

import logging
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from typing import NoReturn

from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tfps_plugin import errors
from tfps_plugin._compat.runtime.living_objects import instances_of

_logger = logging.getLogger("tfps_plugin._compat")

_Function = polymorphic_function.Function
_Trace = concrete_function.ConcreteFunction


def forget(
    variables: Iterable[Any],
    or_if: Callable[[Any], bool] = lambda graph: False,
) -> None:
    """Makes functions retrace, and concrete functions refuse calls.

    Args:
        variables: Variables that are elsewhere now, or are gone.
        or_if: Returns whether a function, a graph, is concerned although it
            uses none of them.

    Threading: no function that uses them may run. What fails is logged: the
    function then refuses its handles when it is called.
    """
    moved = {id(each) for each in variables}
    if not moved:
        return

    def is_outdated(trace: Any) -> bool:
        return _uses(trace, moved) or or_if(trace.graph)

    for each in instances_of(_Function, _Trace):
        try:
            if issubclass(type(each), _Trace):
                if is_outdated(each):
                    # A call looks up what it captures first.
                    each._captured_inputs = [_refusal_of(each.name)]
            elif any(map(is_outdated, each._function_cache.values())):
                each._function_cache.clear()
        # Another thread may just be making it.
        except Exception:
            _logger.debug("A function was not examined", exc_info=True)


def _uses(trace: Any, moved: set[int]) -> bool:
    """Returns whether a concrete function uses one of some variables."""
    types = trace.graph.function_captures.by_ref_tracetype.values()
    owners = (getattr(each, "owner", None) for each in types)
    return any(id(owner()) in moved for owner in owners if owner is not None)


def _refusal_of(name: str) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        raise errors.UnsupportedError(
            "A concrete function was called whose variables are on other "
            "parameter servers now. Expected a function that was traced since "
            f"they have moved. Received: the concrete function {name!r}. Call "
            "get_concrete_function again, or call the tf.function."
        )

    return refuse

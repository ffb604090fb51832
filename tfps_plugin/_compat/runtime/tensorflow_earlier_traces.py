"""Private TensorFlow API: traced functions with operations on a lost device.

When a process becomes a chief, its devices get other names. Nearly all
operations of a function name no task and run on the new devices; those of
`tf.py_function` and `tf.numpy_function` name the process by its full name, and
so does `with tf.device(variable.device)`. A `tf.function` with such operations
is traced again when it is next called. A concrete function cannot be, and
refuses the call.

The functions of a dataset, and their captures, are inside it and cannot be
renewed.

Used since TensorFlow 2.20: `Function._function_cache`,
`ConcreteFunction._call_flat`, `Graph._functions`, `AtomicFunction.definition`,
`DatasetV2._functions`, `DatasetV2._inputs`.
"""

from typing import Any
from typing import NoReturn

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tfps_plugin._compat.runtime.living_objects import instances_of
from tfps_plugin._compat.runtime.tensorflow_lost import LostTensor

_Function = polymorphic_function.Function
_Trace = concrete_function.ConcreteFunction


class EarlierTraces:
    """Traced functions of this process that refer to a lost job.

    Threading: one thread.
    """

    def __init__(self, job: str, present_job: str) -> None:
        """Describes the job.

        Args:
            job: The name that this process's job had.
            present_job: The name that it has now, often the same.
        """
        self._prefix = f"/job:{job}/"
        self._is_gone = job != present_job
        # By the name of a called function.
        self._known: dict[str, bool] = {}

    def is_lost(self, trace: Any) -> bool:
        """Returns whether a concrete function has operations of the job."""
        return self._is_gone and (
            any(
                operation.device.startswith(self._prefix)
                for operation in trace.graph.get_operations()
            )
            or any(map(self._is_lost_inside, trace.graph._functions.values()))
        )

    def why_lost(self, dataset: Any) -> str | None:
        """Returns the reason why a dataset cannot be used anymore.

        Returns:
            The reason, as a verb and its object; None if it can be used.
        """
        functions = [each.function for each in _functions_of(dataset)]
        if any(map(_uses_resources, functions)):
            return "use variables or tables"
        return "run Python" if any(map(self.is_lost, functions)) else None

    def give_up(self) -> None:
        """Makes functions retrace, and concrete functions refuse calls."""
        if not self._is_gone:
            return
        for each in instances_of(_Function, _Trace):
            if issubclass(type(each), _Trace):
                if self.is_lost(each):
                    each._call_flat = _refusal_of(each.name)
            elif any(map(self.is_lost, each._function_cache.values())):
                each._function_cache.clear()

    def _is_lost_inside(self, function: Any) -> bool:
        definition = function.definition
        name = definition.signature.name
        if name not in self._known:
            self._known[name] = any(
                node.device.startswith(self._prefix)
                for node in definition.node_def
            )
        return self._known[name]


def _functions_of(dataset: Any) -> list[Any]:
    """Returns the functions of a dataset and of those that it is made from."""
    functions = list(dataset._functions())
    for each in dataset._inputs():
        functions += _functions_of(each)
    return functions


def _uses_resources(function: Any) -> bool:
    """Returns whether a concrete function uses a variable or a table."""
    return any(
        tensor.dtype == tf.resource for tensor in function.captured_inputs
    )


def _refusal_of(name: str) -> Any:
    lost = LostTensor(
        tf.resource,
        f"the concrete function {name!r}, with operations that run Python or "
        "are placed on a device by its full name",
        "Call get_concrete_function again, or call the tf.function.",
    )

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        lost.__tf_tensor__()

    return refuse

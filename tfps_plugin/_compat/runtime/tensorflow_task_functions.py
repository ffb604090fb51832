"""Python functions of a task, which other tasks call as operations.

The operation is `tf.raw_ops.PyFunc`. It calls the one registry of its process,
which TensorFlow's own Python code installs with `tf.py_function`; a task that
serves without that code gets the registry below. Without one, the operation
would end the process.

Used since TensorFlow 2.20: `_pywrap_py_func.initialize_py_trampoline`,
`script_ops._py_funcs`.
"""

import sys
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from tfps_plugin._compat.runtime import tensorflow_server

_SCRIPTS = "tensorflow.python.ops.script_ops"


class _Registry:
    """Calls functions by their names."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = functions

    def __call__(self, token: Any, device: str, args: Any) -> list[Any]:
        del device
        name = token.decode() if isinstance(token, bytes) else token
        function = self._functions.get(name)
        if function is None:
            raise ValueError(f"This task has no function {name!r}.")
        return [function(*args)]


def serve(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Lets others call functions of this process. Call it once.

    Args:
        functions: The functions by name. They get arrays, strings as `bytes`,
            and return one array or number.
    """
    scripts = sys.modules.get(_SCRIPTS)
    if scripts is None:
        with tensorflow_server.empty_tensorflow():
            from tensorflow.python.lib.core import _pywrap_py_func
        _pywrap_py_func.initialize_py_trampoline(_Registry(functions))
        return
    registry = scripts._py_funcs
    registry._funcs.update(functions)
    # It refers to functions only weakly.
    registry.functions_of_tfps_plugin = functions

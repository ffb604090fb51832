"""TensorFlow's server and sessions, without the rest of TensorFlow.

`import tensorflow` takes some three seconds of processor time, four fifths of
it for Python code that a worker or ps never calls: Keras, and all packages that
Keras imports if they are installed. A process that imports this module before
TensorFlow gets the native library, with all operations and kernels, and the
Python code of servers and sessions. A later import of TensorFlow gets all of
it.

The names are public API elsewhere, as the last lines show; only the way to them
is private. If TensorFlow is already imported, they are its own. If it has
plugins (below), or a release has moved one of the names, all of TensorFlow is
imported.

Threading: import it while no other thread imports TensorFlow.
"""

import contextlib
import importlib.util
import logging
import os
import pathlib
import site
import sys
import sysconfig
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

_logger = logging.getLogger("tfps_plugin._compat")

_TENSORFLOW = "tensorflow"
_SCRIPTS = "tensorflow.python.ops.script_ops"
# Variables that make `import tensorflow` load further native libraries.
_EXTENDING_VARIABLES = (
    "TF_PLUGGABLE_DEVICE_LIBRARY_PATH",
    "TF_USE_MODULAR_FILESYSTEM",
)
# It also loads libraries in these folders: in any folder of packages, and in
# TensorFlow's own folder.
_PLUGINS = "tensorflow-plugins"
_KERNELS = pathlib.PurePath("core", "kernels")
# Operations outside the native library; the omitted Python code loads them.
_OPERATIONS = "lite/experimental/microfrontend/python/ops/*_op.so"


def _is_extended(folder: pathlib.Path) -> bool:
    """Returns whether TensorFlow, installed in `folder`, loads plugins."""
    return (
        any(map(os.environ.get, _EXTENDING_VARIABLES))
        or any((folder / _KERNELS).glob("*.so"))
        or any((each / _PLUGINS).exists() for each in _package_folders())
    )


def _package_folders() -> Iterable[pathlib.Path]:
    """Returns the folders in which packages may be installed."""
    folders = {*sys.path, *site.getsitepackages(), site.getusersitepackages()}
    for scheme in sysconfig.get_scheme_names():
        folders |= {
            sysconfig.get_path(kind, scheme) for kind in ("purelib", "platlib")
        }
    return map(pathlib.Path, folders)


@contextlib.contextmanager
def empty_tensorflow() -> Iterator[pathlib.Path | None]:
    """Keeps `import tensorflow.x` from importing all of TensorFlow.

    Yields:
        TensorFlow's folder; None if all of it must be imported.
    """
    if _TENSORFLOW in sys.modules:
        yield None
        return
    spec = importlib.util.find_spec(_TENSORFLOW)
    if spec is None or spec.origin is None:
        yield None
        return
    folder = pathlib.Path(spec.origin).parent
    if _is_extended(folder):
        _logger.debug("TensorFlow has plugins: importing all of it.")
        yield None
        return
    # A package with a path, but without running its own code.
    sys.modules[_TENSORFLOW] = importlib.util.module_from_spec(spec)
    try:
        yield folder
    finally:
        # The next `import tensorflow` runs that code.
        del sys.modules[_TENSORFLOW]


def _prepare(folder: pathlib.Path) -> None:
    """Does the setup of `import tensorflow` without its imports.

    Used since TensorFlow 2.20: `tf2.enable`, `TF_LoadLibrary`,
    `TF_DeleteLibraryHandle`.
    """
    from tensorflow.python import pywrap_tensorflow  # noqa: F401

    # Some modules read it during their import, and so does native code.
    os.environ["TF2_BEHAVIOR"] = "1"
    from tensorflow.python import tf2

    tf2.enable()
    from tensorflow.python.client import pywrap_tf_session

    for library in folder.glob(_OPERATIONS):
        pywrap_tf_session.TF_DeleteLibraryHandle(
            pywrap_tf_session.TF_LoadLibrary(str(library))
        )


try:
    with empty_tensorflow() as _folder:
        if _folder is not None:
            _prepare(_folder)
        from tensorflow.core.protobuf.config_pb2 import ConfigProto
        from tensorflow.python.client.session import Session
        from tensorflow.python.framework.dtypes import string
        from tensorflow.python.framework.errors import FailedPreconditionError
        from tensorflow.python.framework.errors import NotFoundError
        from tensorflow.python.framework.errors import OpError
        from tensorflow.python.framework.ops import Graph
        from tensorflow.python.framework.ops import device_v2 as device
        from tensorflow.python.ops import gen_data_flow_ops as raw_ops
        from tensorflow.python.ops import gen_resource_variable_ops
        from tensorflow.python.ops.array_ops import placeholder
        from tensorflow.python.training.server_lib import ClusterSpec
        from tensorflow.python.training.server_lib import Server
except (ImportError, AttributeError) as _error:
    _logger.debug("Importing all of TensorFlow, because: %s", _error)
    import tensorflow as tf

    ConfigProto = tf.compat.v1.ConfigProto
    Session = tf.compat.v1.Session
    string = tf.string
    FailedPreconditionError = tf.errors.FailedPreconditionError
    NotFoundError = tf.errors.NotFoundError
    OpError = tf.errors.OpError
    Graph = tf.Graph
    device = tf.device
    raw_ops = tf.raw_ops
    gen_resource_variable_ops = tf.raw_ops
    placeholder = tf.compat.v1.placeholder
    ClusterSpec = tf.train.ClusterSpec
    Server = tf.distribute.Server


def write_text(name: str) -> tuple[Any, Any]:
    """Adds operations to the present graph that keep a text under a name.

    Args:
        name: The name, which others find the text by.

    Returns:
        The placeholder of the text, and the operation that keeps it.
    """
    text = placeholder(string, [])
    assign = gen_resource_variable_ops.AssignVariableOp(
        resource=_text_variable(name), value=text
    )
    return text, assign


def read_text(name: str) -> Any:
    """Adds operations to the present graph that read such a text.

    Returns:
        The text, a scalar tensor.
    """
    return gen_resource_variable_ops.ReadVariableOp(
        resource=_text_variable(name), dtype=string
    )


def _text_variable(name: str) -> Any:
    return gen_resource_variable_ops.VarHandleOp(
        dtype=string, shape=[], shared_name=name
    )


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


def serve_functions(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Lets others call functions of this process. Call it once.

    The operation is `tf.raw_ops.PyFunc`. It calls the one registry of its
    process, which TensorFlow's own Python code installs with
    `tf.py_function`; a task that serves without that code gets one of ours.
    Without any, the operation would end the process.

    Used since TensorFlow 2.20: `_pywrap_py_func.initialize_py_trampoline`,
    `script_ops._py_funcs`.

    Args:
        functions: The functions by name. They get arrays, strings as `bytes`,
            and return one array or number.
    """
    scripts = sys.modules.get(_SCRIPTS)
    if scripts is None:
        with empty_tensorflow():
            from tensorflow.python.lib.core import _pywrap_py_func
        _pywrap_py_func.initialize_py_trampoline(_Registry(functions))
        return
    registry = scripts._py_funcs
    registry._funcs.update(functions)
    # It refers to functions only weakly.
    registry.functions_of_tfps_plugin = functions

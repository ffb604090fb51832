"""Private TensorFlow API: a process's state before it became a chief.

TensorFlow makes the devices of this process anew, under other names, when it
starts a server for it. A tensor of before is still read; a variable, a lookup
table and what a function has captured of either are not found any more, or,
where the names are the same, assigned beside the variable. So they are made
anew on the new devices, with the values that they had.

Used since TensorFlow 2.20: `BaseResourceVariable._handle`,
`CapturableResource._resource_handle`, `DatasetV2._variant_tensor_attr`,
`DatasetV2._functions`, `OwnedIterator._iterator_resource`,
`FuncGraph._function_captures`, `ConcreteFunction._captured_inputs`.
"""

import gc
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops
from tensorflow.python.ops import lookup_ops
from tensorflow.python.ops import resource_variable_ops

_Variable = resource_variable_ops.BaseResourceVariable
_Table = lookup_ops.StaticHashTable
_Iterator = iterator_ops.OwnedIterator
_Graph = func_graph.FuncGraph
_Function = concrete_function.ConcreteFunction
# Where each keeps its tensor. A variable of a parameter server keeps its handle
# under another name.
_ATTRIBUTES: dict[type, str] = {
    _Variable: "_handle",
    _Table: "_resource_handle_value",
    tf.data.Dataset: "_variant_tensor_attr",
    _Iterator: "_iterator_resource",
}
# Set on a tensor of another task: its device may be asked for while it is
# connected to that, and never again.
_ELSEWHERE = "_tfps_elsewhere"


class EarlierState:
    """Variables, tables, datasets and functions of this process's devices.

    Threading: one thread. Nothing else may use TensorFlow from `read` until
    `restore` has returned.
    """

    def __init__(self) -> None:
        """Finds out what there is, while all devices still exist."""
        self._found: dict[type, list[weakref.ref[Any]]] = {
            kind: [] for kind in (*_ATTRIBUTES, _Graph, _Function)
        }
        self._values: list[tuple[Any, str, Any]] = []
        # Of captured tensors.
        self._local: set[int] = set()
        if context.context()._context_handle is None:
            # Nothing has run yet; to ask for devices would set TensorFlow up.
            return
        self._job = _own_job()
        bases: dict[type, type | None] = {}
        for each in gc.get_objects():
            # Not isinstance, which would ask proxies for their class.
            kind = type(each)
            if kind not in bases:
                bases[kind] = next(
                    (base for base in self._found if issubclass(kind, base)),
                    None,
                )
            base = bases[kind]
            if base is None:
                continue
            if base in _ATTRIBUTES:
                if self._is_local(vars(each).get(_ATTRIBUTES[base])):
                    self._found[base].append(weakref.ref(each))
                continue
            self._found[base].append(weakref.ref(each))
            for tensor in _captured(each):
                if self._is_local(tensor):
                    self._local.add(id(tensor))

    def _is_local(self, tensor: Any) -> bool:
        """Returns whether a tensor is on a device of this process."""
        if not _is_eager(tensor) or hasattr(tensor, _ELSEWHERE):
            return False
        if tf.DeviceSpec.from_string(tensor.device).job == self._job:
            return True
        setattr(tensor, _ELSEWHERE, True)
        return False

    def read(self) -> None:
        """Reads the values, before the devices are made anew."""
        with tf.init_scope(), ops.device(None):
            for variable in self._living(_Variable):
                if variable.dtype == tf.variant:
                    continue
                device = _here(variable._handle.device)
                value = None
                if bool(variable.is_initialized()):
                    value = variable.numpy()
                self._values.append((variable, device, value))

    def restore(self) -> list[str]:
        """Makes all anew on the devices that there are now.

        Returns:
            What does not work any more, in words, each once.
        """
        # By the identity of the old tensor, which is kept for as long.
        renewed: dict[int, tuple[Any, Any]] = {}
        with tf.init_scope(), ops.device(None):
            for variable, device, value in self._values:
                old = variable._handle
                variable._handle = _new_variable(variable, device, value)
                renewed[id(old)] = old, variable._handle
            for table in self._living(_Table):
                old = table._resource_handle
                table._resource_handle = table._create_resource()
                table._initialize()
                renewed[id(old)] = old, table._resource_handle
            # What Keras has left in cycles is nobody's.
            gc.collect()
            # A dataset has its functions' captures in it.
            lost = {
                f"a dataset of {dataset.element_spec}"
                for dataset in self._living(tf.data.Dataset)
                if _captures_resources(dataset)
            }
            for dataset in self._living(tf.data.Dataset):
                dataset._variant_tensor_attr = _copy(
                    dataset._variant_tensor_attr, renewed
                )
            self._renew_captures(renewed)
        self._values.clear()
        lost |= {
            f"an iterator over {iterator.element_spec}"
            for iterator in self._living(_Iterator)
        }
        return sorted(lost)

    def _renew_captures(self, renewed: dict[int, tuple[Any, Any]]) -> None:
        for graph in self._living(_Graph):
            captured = graph._function_captures.by_val_external
            for key, tensor in list(captured.items()):
                if id(tensor) in self._local:
                    captured[key] = _copy(tensor, renewed)
        for function in self._living(_Function):
            function.set_external_captures(
                [
                    _copy(each, renewed) if id(each) in self._local else each
                    for each in function._captured_inputs
                ]
            )

    def _living(self, kind: type) -> list[Any]:
        found = [reference() for reference in self._found[kind]]
        return [each for each in found if each is not None]


def _captured(function: Any) -> list[Any]:
    if isinstance(function, _Function):
        return list(function._captured_inputs)
    return list(function._function_captures.by_val_external.values())


def _captures_resources(dataset: Any) -> bool:
    """Returns whether a function of a dataset uses a variable or a table."""
    return any(
        tensor.dtype == tf.resource
        for function in dataset._functions()
        for tensor in function.function.captured_inputs
    )


def _is_eager(tensor: Any) -> bool:
    return issubclass(type(tensor), ops.EagerTensor)


def _own_job() -> str:
    with tf.init_scope(), ops.device(None), tf.device("/device:CPU:0"):
        return str(tf.DeviceSpec.from_string(tf.constant(0).device).job)


def _here(device: str) -> str:
    """The name of a device that it has in whatever process it is in."""
    spec = tf.DeviceSpec.from_string(device)
    return f"/device:{spec.device_type}:{spec.device_index}"


def _new_variable(variable: Any, device: str, value: Any) -> Any:
    with tf.device(device):
        handle = resource_variable_ops._variable_handle_from_shape_and_dtype(
            shape=variable._shape,
            dtype=variable.dtype,
            shared_name=None,
            name=f"{variable._handle_name.removesuffix(':0')}/handle",
            graph_mode=False,
        )
        handle._parent_trackable = weakref.ref(variable)
        if value is not None:
            tf.raw_ops.AssignVariableOp(
                resource=handle,
                value=tf.convert_to_tensor(value, variable.dtype),
            )
    return handle


def _copy(tensor: Any, renewed: dict[int, tuple[Any, Any]]) -> Any:
    """The tensor on the devices of now; itself, if it cannot be there."""
    if id(tensor) in renewed:
        return renewed[id(tensor)][1]
    if tensor.dtype == tf.resource:
        return tensor
    with tf.device("/device:CPU:0"):
        new = tf.identity(tensor)
    renewed[id(tensor)] = tensor, new
    return new

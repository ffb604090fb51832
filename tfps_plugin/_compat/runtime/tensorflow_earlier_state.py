"""Private TensorFlow API: state that the process had before it became a chief.

TensorFlow recreates the devices of this process, under other names, when it
starts a server for it. A tensor on an earlier device can still be read. A
variable, a lookup table, and a function that has captured either of them fail,
because their devices are not found; if the names are the same, an assignment
goes to another place than a read. So all of them are recreated on the new
devices, with the values that they had. Objects that cannot be recreated get
stand-ins that refuse every use (`tensorflow_lost`).

Used since TensorFlow 2.20: `BaseResourceVariable._handle`,
`CapturableResource._resource_handle`, `DatasetV2._variant_tensor_attr`,
`OwnedIterator._iterator_resource`, `QueueBase._queue_ref`,
`_ResourceSummaryWriter._resource`, `FuncGraph._function_captures`,
`ConcreteFunction._captured_inputs`.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import func_graph
from tensorflow.python.framework import ops
from tensorflow.python.ops import data_flow_ops
from tensorflow.python.ops import lookup_ops
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.ops import summary_ops_v2
from tensorflow.python.trackable import resource

from tfps_plugin._compat.graph import tensorflow_tables
from tfps_plugin._compat.runtime.living_objects import instances_of
from tfps_plugin._compat.runtime.tensorflow_earlier_traces import EarlierTraces
from tfps_plugin._compat.runtime.tensorflow_lost import LostTensor

_Variable = resource_variable_ops.BaseResourceVariable
_Table = lookup_ops.LookupInterface
# Tables, above all, of a SavedModel that was loaded.
_Restored = resource.RestoredResource
_Iterator = iterator_ops.OwnedIterator
_Queue = data_flow_ops.QueueBase
_Writer = summary_ops_v2._ResourceSummaryWriter
_Graph = func_graph.FuncGraph
_Function = concrete_function.ConcreteFunction
# The attribute in which each keeps its tensor. A variable of a parameter server
# keeps its handle in another one.
_ATTRIBUTES: dict[type, str] = {
    _Variable: "_handle",
    _Table: "_resource_handle_value",
    _Restored: "_resource_handle_value",
    tf.data.Dataset: "_variant_tensor_attr",
    _Iterator: "_iterator_resource",
    _Queue: "_queue_ref",
    _Writer: "_resource",
}
# Objects that cannot be recreated: their descriptions, and advice.
_LOST: dict[type, tuple[Callable[[Any], str], str]] = {
    _Iterator: (
        lambda iterator: f"an iterator over {iterator.element_spec}",
        "Call iter(dataset) after the strategy.",
    ),
    _Queue: (
        lambda queue: f"a queue of {[dtype.name for dtype in queue.dtypes]}",
        "Make the queue after the strategy.",
    ),
    _Writer: (
        lambda writer: "a summary writer",
        "Its summaries are in its files. Call tf.summary.create_file_writer "
        "after the strategy.",
    ),
}
# Marks a tensor of another task: its device can only be read while the process
# is connected to that task.
_ELSEWHERE = "_tfps_elsewhere"


class EarlierState:
    """Objects on the present devices of this process.

    Threading: one thread. No other thread may use TensorFlow from `read` until
    `restore` has returned.
    """

    def __init__(self) -> None:
        """Finds the objects, while all devices still exist."""
        self._found: dict[type, list[weakref.ref[Any]]] = {
            kind: [] for kind in (*_ATTRIBUTES, _Graph, _Function)
        }
        self._values: list[tuple[Any, str, Any]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._job = ""
        # Identities of captured tensors.
        self._local: set[int] = set()
        # By the identity of the old tensor, which is kept alive as well.
        self._renewed: dict[int, tuple[Any, Any]] = {}
        if context.context()._context_handle is None:
            # Nothing has run yet; reading devices would initialize TensorFlow.
            return
        self._job = _own_job()
        for each in instances_of(*self._found):
            base = next(
                kind for kind in self._found if issubclass(type(each), kind)
            )
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
        """Reads all values, before the devices are recreated."""
        with tf.init_scope(), ops.device(None):
            for variable in self._living(_Variable):
                if variable.dtype == tf.variant:
                    continue
                device = _here(variable._handle.device)
                value = None
                if bool(variable.is_initialized()):
                    value = variable.numpy()
                self._values.append((variable, device, value))
            for kind in (_Table, _Restored):
                for table in self._living(kind):
                    self._contents.append((table, _content(table)))
            for writer in self._living(_Writer):
                writer.flush()

    def restore(self) -> list[str]:
        """Recreates all objects on the present devices.

        Returns:
            Descriptions of the objects that do not work anymore, each once.
        """
        with tf.init_scope(), ops.device(None):
            for variable, device, value in self._values:
                old = variable._handle
                variable._handle = _new_variable(variable, device, value)
                self._renew(old, variable._handle)
            for table, content in self._contents:
                if not isinstance(table, _Restored):
                    self._renew_table(table, content)
            # Keras leaves unreachable objects in cycles.
            gc.collect()
            traces = EarlierTraces(self._job, _own_job())
            lost = self._give_up(traces)
            for dataset in self._living(tf.data.Dataset):
                if _is_eager(dataset._variant_tensor_attr):
                    dataset._variant_tensor_attr = self._copy(
                        dataset._variant_tensor_attr
                    )
            self._renew_captures()
            # The renewed functions create and fill these tables.
            for table, content in self._contents:
                if isinstance(table, _Restored):
                    self._renew_table(table, content)
            self._renew_captures()
        traces.give_up()
        self._values.clear()
        self._contents.clear()
        return sorted(lost)

    def _renew(self, old: Any, new: Any) -> None:
        self._renewed[id(old)] = old, new

    def _renew_table(self, table: Any, content: Any) -> None:
        old = table._resource_handle
        table._resource_handle = new = table._create_resource()
        self._renew(old, new)
        if content is None:
            table._initialize()
            return
        keys, values = content
        tf.raw_ops.LookupTableImportV2(
            table_handle=new, keys=keys, values=values
        )

    def _give_up(self, traces: EarlierTraces) -> set[str]:
        """Puts stand-ins into the objects that cannot be recreated."""
        given_up: list[tuple[Any, str, str]] = []
        for dataset in self._living(tf.data.Dataset):
            reason = traces.why_lost(dataset)
            if reason is not None:
                given_up.append(
                    (
                        dataset,
                        f"a dataset of {dataset.element_spec} with functions "
                        f"that {reason}",
                        "Make the dataset after the strategy.",
                    )
                )
        for kind, (describe, remedy) in _LOST.items():
            for owner in self._living(kind):
                given_up.append((owner, describe(owner), remedy))
        for owner, description, remedy in given_up:
            name = _ATTRIBUTES[_base(owner)]
            old = vars(owner)[name]
            new = LostTensor(old.dtype, description, remedy)
            setattr(owner, name, new)
            self._renew(old, new)
        return {description for _, description, _ in given_up}

    def _renew_captures(self) -> None:
        for graph in self._living(_Graph):
            captured = graph._function_captures.by_val_external
            for key, tensor in list(captured.items()):
                if id(tensor) in self._local:
                    captured[key] = self._copy(tensor)
        for function in self._living(_Function):
            function.set_external_captures(
                [
                    self._copy(each) if id(each) in self._local else each
                    for each in function._captured_inputs
                ]
            )

    def _copy(self, tensor: Any) -> Any:
        """Returns the tensor on the present devices.

        A resource that is not known yet is returned as it is.
        """
        if id(tensor) in self._renewed:
            return self._renewed[id(tensor)][1]
        if tensor.dtype == tf.resource:
            return tensor
        with tf.device("/device:CPU:0"):
            new = tf.identity(tensor)
        self._renew(tensor, new)
        return new

    def _living(self, kind: type) -> list[Any]:
        found = [reference() for reference in self._found[kind]]
        return [each for each in found if each is not None]


def _base(owner: Any) -> type:
    return next(each for each in _ATTRIBUTES if isinstance(owner, each))


def _content(table: Any) -> tuple[Any, Any] | None:
    """Returns keys and values as arrays; None if there is nothing to read.

    The initializer cannot fill a table again: a vocabulary's file may be gone,
    and a mutable table has changed.
    """
    if isinstance(table, _Restored):
        if not tensorflow_tables.is_static_table(table):
            return None
        key_dtype, value_dtype = tensorflow_tables.dtypes_of(table)
    else:
        key_dtype, value_dtype = table.key_dtype, table.value_dtype
    try:
        keys, values = tf.raw_ops.LookupTableExportV2(
            table_handle=table._resource_handle,
            Tkeys=key_dtype,
            Tvalues=value_dtype,
        )
    except tf.errors.OpError:
        # It has not been filled yet.
        return None
    return (
        tf.constant(keys.numpy(), key_dtype),
        tf.constant(values.numpy(), value_dtype),
    )


def _captured(function: Any) -> list[Any]:
    if isinstance(function, _Function):
        return list(function._captured_inputs)
    return list(function._function_captures.by_val_external.values())


def _is_eager(tensor: Any) -> bool:
    return issubclass(type(tensor), ops.EagerTensor)


def _own_job() -> str:
    with tf.init_scope(), ops.device(None), tf.device("/device:CPU:0"):
        return str(tf.DeviceSpec.from_string(tf.constant(0).device).job)


def _here(device: str) -> str:
    """Returns the name of a device without its task."""
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
